"""A bounded, seeded, class-balanced sample of images, drawn while they stream by.

Every image gets a random priority from its place in the data alone, so the draw does not depend on
what the labels are called. Each class keeps its best; how many, the classes settle by sharing the
size of the sample evenly, and a class that has fewer leaves its share to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Sample:
    """Images `[image, …]` in the data's order, their places in it, and their classes where labelled."""

    images: Tensor
    places: Tensor  # [image]
    classes: Tensor | None  # [image]


_Entry = tuple[float, int, int, Tensor]  # priority, place, class, image


class Drawing:
    """Draws a sample from batches; holds at most twice its size."""

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self._random = np.random.default_rng([seed, 0x5A4D])
        self._seen = 0
        self._held: list[_Entry] = []

    def add(self, images: Tensor, classes: Tensor | None) -> None:
        """The next batch: images `[image, …]`, and their classes `[image]`."""
        priorities = self._random.random(len(images)).tolist()
        kinds = [0] * len(images) if classes is None else classes.tolist()
        bars = self._bars() if len(self._held) >= self.size else {}
        for offset, (priority, kind) in enumerate(zip(priorities, kinds, strict=True)):
            if priority <= bars.get(kind, 1.0):
                self._held.append(
                    (priority, self._seen + offset, kind, images[offset].detach().clone().cpu())
                )
        self._seen += len(images)
        if len(self._held) > 2 * self.size:
            self._settle()

    def finish(self, labelled: bool) -> Sample:
        """The sample of everything added."""
        self._settle()
        held = sorted(self._held, key=lambda entry: entry[1])
        classes = torch.tensor([kind for _, _, kind, _ in held], dtype=torch.int64) if labelled else None
        places = torch.tensor([place for _, place, _, _ in held], dtype=torch.int64)
        return Sample(torch.stack([image for *_, image in held]), places, classes)

    def _by_class(self) -> dict[int, list[_Entry]]:
        groups: dict[int, list[_Entry]] = {}
        for entry in sorted(self._held, key=_rank):
            groups.setdefault(entry[2], []).append(entry)
        return groups

    def _settle(self) -> None:
        """Drop what cannot be in the sample any more: further images only lower the level."""
        groups = self._by_class()
        full = level([len(group) for group in groups.values()], self.size)
        self._held = [entry for group in groups.values() for entry in group[:full]]
        # Where the size does not divide evenly, the classes with the best next image get one more.
        beyond = sorted((group[full] for group in groups.values() if len(group) > full), key=_rank)
        self._held += beyond[: self.size - len(self._held)]

    def _bars(self) -> dict[int, float]:
        """Per class, the priority beyond which an image cannot be in the sample any more."""
        groups = self._by_class()
        full = level([len(group) for group in groups.values()], self.size)
        return {kind: group[full][0] for kind, group in groups.items() if len(group) > full}


def _rank(entry: _Entry) -> tuple[float, int]:
    return entry[:2]


def level(counts: Sequence[int], size: int) -> int:
    """The most images that every class with so many may have in a sample of this size."""
    left, open_ = size, len(counts)
    for count in sorted(counts):
        if count * open_ > left:
            return left // open_
        left -= count
        open_ -= 1
    return max(counts, default=0)
