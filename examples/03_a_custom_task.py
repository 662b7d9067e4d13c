"""Evolve functions on a task of your own: anything that can keep channels and judge what is left.

The task here needs no network: its channels are the pixels of digits, and what is left is judged by the class
means nearest to held-out images. It shows what an evolution asks of a task; a task of the package with a
network of yours needs no code at all (docs/tasks.md).

    python examples/03_a_custom_task.py
"""

from dataclasses import dataclass
from pathlib import Path

import torch

import evoprune


@dataclass(frozen=True)
class Kept:
    channels: dict[str, tuple[int, ...]]  # site → channels that stay
    constant: tuple[str, ...] = ()  # sites at which the function scored all channels alike


@dataclass(frozen=True)
class Result:
    accuracy: float  # from 0 to 1


class Pixels:
    """Keep 12 of 64 pixels."""

    def __init__(self, folder: Path | None = None, keep: int = 12) -> None:
        digits = evoprune.Task.from_spec("digits").data
        self.train, self.validation = (
            next(split.ordered(10_000)) for split in (digits.train, digits.validation)
        )
        self.keep = keep

    def base(self) -> None:
        """Make ready what all evaluations share: nothing here; a network is trained here elsewhere."""

    def kept(self, function: str) -> Kept:
        images, labels = (each[:300] for each in self.train)  # as many as it takes to rank pixels
        pixels = images.flatten(1)[:, :, None, None]  # each pixel a channel with maps of 1×1
        scores = torch.from_numpy(
            evoprune.score_arrays(function, pixels.numpy(), labels.numpy(), dtype="float64")
        )
        best = scores.argsort(descending=True, stable=True)[: self.keep]
        constant = ("pixels",) if scores.max() == scores.min() else ()
        return Kept({"pixels": tuple(sorted(best.tolist()))}, constant)

    def evaluate(self, kept: Kept, seed: int) -> Result:
        chosen = list(kept.channels["pixels"])
        images, labels = (self.train[0].flatten(1)[:, chosen], self.train[1])
        means = torch.stack([images[labels == each].mean(0) for each in range(10)])
        seen = self.validation[0].flatten(1)[:, chosen]
        guessed = torch.cdist(seen, means).argmin(1)
        return Result((guessed == self.validation[1]).double().mean().item())


if __name__ == "__main__":
    settings = {
        "population": {
            "size": 20,
            "generations": 6,
            "soap": 6,
            "selected": 5,
            "children": 12,
            "immigrants": 3,
        }
    }
    # Pixels have no filters: functions of the SOAP that read them cannot score here and get fitness 0.
    run = evoprune.evolve(settings, tasks={"pixels": Pixels()}, runs="runs/examples")
    for generation in run:
        best = generation.best
        print(f"generation {generation.number}: {best.fitness:.1%}  {best.individual.expr}")
    print(f"\n{run.comparison.text()}")
