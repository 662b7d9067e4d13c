"""A task: network + data + what is cut + how it is retrained. The unit of fitness and of every result."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

import evoprune
from evoprune import config
from evoprune.errors import DataError, SavedFileError, TrainingError
from evoprune.expression.library import resolve
from evoprune.expression.tree import Expr
from evoprune.pruning.prune import Pruned
from evoprune.pruning.surgery import Surgeon
from evoprune.tasks.batches import Batches, Split
from evoprune.tasks.building import build, with_weights
from evoprune.tasks.cutting import counts, kept_by, surgeon_of
from evoprune.tasks.datasets import Data, DataConfig, load_data, named_shape, stratified
from evoprune.tasks.importances import IMPORTANCES, check_method, importance_scores_of
from evoprune.tasks.recipes import Recipe
from evoprune.tasks.results import Kept, On, Result, channels_key
from evoprune.tasks.settings import Settings, changed, settings
from evoprune.tasks.store import read_json, read_tensors, read_weights, write_json, write_tensors
from evoprune.tasks.training import (
    CHECKPOINT,
    Accuracy,
    History,
    Watcher,
    accuracy,
    evaluating,
    recalibrate,
    seeded,
    state_key,
    train,
)

BASE_FORMAT = "evoprune base 1"
RESULT_FORMAT = "evoprune result 1"


class Channels(Protocol):
    """What `Task.evaluate` reads of a `Kept`."""

    @property
    def channels(self) -> Mapping[str, Sequence[int]]: ...


@dataclass(frozen=True, eq=False)
class Base:
    """The trained network that is scored and cut, in evaluation mode, and how it does on validation.

    That is None for weights from elsewhere, which have seen those images.
    """

    network: nn.Module
    validation: Accuracy | None

    @property
    def accuracy(self) -> float | None:
        return None if self.validation is None else self.validation.top1


@dataclass(frozen=True, eq=False)
class Task:
    """A task that can be run: its settings, and where what is made once for it is kept.

    `folder` holds the trained base network and what is computed from it; processes that share it share those.
    Nothing is loaded, built or trained before it is needed.
    """

    settings: Settings
    folder: Path | None = None
    device: str = "cpu"
    _made: dict[str, Any] = field(default_factory=dict, repr=False)  # what is made once

    @classmethod
    def from_spec(
        cls,
        spec: str | Path | Mapping[str, Any],
        *,
        overrides: Iterable[str] = (),
        folder: str | Path | None = None,
        device: str = "cpu",
    ) -> Task:
        """A task of the package by name, from a TOML file, or from the table that `spec` gave."""
        return cls(settings(spec, overrides), Path(folder) if folder is not None else None, device)

    @property
    def spec(self) -> config.Table:
        """Everything that `from_spec` needs in another process, as a table for TOML."""
        table: config.Table = config.to_table(self.settings)
        return table

    @property
    def name(self) -> str:
        return self.settings.name

    @cached_property
    def data(self) -> Data:
        return load_data(self.settings.data, device=self.device)

    @cached_property
    def scoring(self) -> Split:
        """The training images that channels are scored on; none of them is in the validation split."""
        wanted, train_split = self.settings.recipe.scoring_images, self.data.train
        if wanted == "all" or wanted >= len(train_split):
            return train_split
        return train_split.take(stratified(train_split.labels.numpy(), wanted, self.settings.base_seed)[0])

    def example(self) -> torch.Tensor:
        """An input of the network's shape, `[1, channel, y, x]`; named data sets are not opened for it."""
        shape = named_shape(self.settings.data) or self.data.shape
        return torch.zeros(1, *shape, device=self.device)

    # --- the base network -------------------------------------------------------------------------------

    def untrained(self) -> nn.Module:
        """The network with its initial weights, which come from the base seed."""
        with seeded(self.settings.base_seed, self.device):
            return build(self.settings.network, self.settings.options).to(self.device)

    def base(self, watcher: Watcher | None = None) -> Base:
        """The trained network; trained when it is first needed, then read back from the folder."""
        if "base" not in self._made:
            network = self._base_network(watcher).eval()
            seen = self.settings.weights is not None and not self.settings.weights_held_out
            judged = None if seen else self.judge(network, "validation")
            if judged is not None and self.settings.weights is None:
                _check_judged(judged, self.settings.base)
            self._made["base"] = Base(network, judged)
        base: Base = self._made["base"]
        return base

    def _base_network(self, watcher: Watcher | None) -> nn.Module:
        chosen, network = self.settings, self.untrained()
        if chosen.weights is not None:
            self._try(network)
            return with_weights(network, read_weights(chosen.weights), chosen.weights)
        folder = self.base_folder
        if folder is not None and (folder / "base.safetensors").exists():
            weights, header = read_tensors(folder / "base.safetensors", BASE_FORMAT)
            if header.get("data") != self.data.key:
                raise SavedFileError(
                    f"{folder / 'base.safetensors'} was trained on other images of {self.data.name!r} than "
                    "those here; remove it to train anew"
                )
            return with_weights(network, weights, folder / "base.safetensors")
        self._try(network)
        train(network, self.data.train, chosen.base, seed=chosen.base_seed, folder=folder, watcher=watcher)
        if folder is not None:
            header = {"format": BASE_FORMAT, "data": self.data.key, "settings": config.dump(chosen)}
            write_tensors(folder / "base.safetensors", network.state_dict(), header)
            (folder / CHECKPOINT).unlink(missing_ok=True)
        return network

    def _try(self, network: nn.Module) -> None:
        """One image through the network, so that what does not fit is told as such, and at once."""
        try:
            with evaluating(network), torch.no_grad():
                network(self.example())
        except Exception as error:  # whatever the network's own code raises
            shape = " × ".join(map(str, self.example().shape[1:]))
            raise DataError(
                f"the network {self.settings.network} cannot take images [channel, y, x] of {shape}: {error}"
            ) from error

    @property
    def base_folder(self) -> Path | None:
        """Where the base network is; another network, data, recipe or seed has another folder."""
        if self.folder is None:
            return None
        chosen = self.settings
        parts = {
            "network": chosen.network,
            "options": dict(chosen.options),
            "data": replace(chosen.data, workers=DataConfig.workers),  # no result depends on them
            "base": chosen.base,
            "seed": chosen.base_seed,
        }
        return self.folder / f"base-{hashlib.sha256(config.dump(parts).encode()).hexdigest()[:10]}"

    def judge(self, network: nn.Module, on: On) -> Accuracy:
        """A network's accuracy on the validation split, or, for a final result, on the test images."""
        return accuracy(network, self.data.validation if on == "validation" else self.data.test)

    @cached_property
    def base_on_test(self) -> Accuracy:
        return self.judge(self.base().network, "test")

    # --- cutting ----------------------------------------------------------------------------------------

    @cached_property
    def surgeon(self) -> Surgeon:
        """Cuts the base network; its sites are where channels can go."""
        return surgeon_of(self.base().network, self.example(), self.settings.cut)

    def check(self) -> None:
        """Refuse a cut that does not fit the network, without training it first."""
        cut, network = self.settings.cut, self.untrained()
        self._try(network)
        counts(surgeon_of(network, self.example(), cut), cut)

    def kept(self, function: str | Expr, *, seed: int = 0) -> Kept:
        """The channels that a function keeps: a name, a text or a tree, or `tp_…` of Torch-Pruning.

        The function is evaluated on the scoring images and the base network, from statistics that are
        gathered once. `seed` is for the function `random`, which draws.
        """
        function = function if isinstance(function, str) else resolve(function).name
        check_method(function)
        drawn = function not in IMPORTANCES and resolve(function).expr is None
        key = f"kept {function} {seed if drawn else ''}"
        if key not in self._made:
            self._made[key] = self._kept(function, seed)
        kept: Kept = self._made[key]
        return kept

    def _kept(self, function: str, seed: int) -> Kept:
        if function in IMPORTANCES:
            return kept_by(self.surgeon, self.settings.cut, importance_scores_of(self, function))
        name = resolve(function).name
        scored = self._scored(function, seed)
        sampled = "sample" in scored.modes[name].values()
        return kept_by(self.surgeon, self.settings.cut, scored[name], sampled=sampled)

    def _scored(self, function: str, seed: int) -> evoprune.Scores:
        if resolve(function).expr is None:
            return evoprune.score(self.base().network, function, sites=self.surgeon.sites, seed=seed)
        return self.scores([function])

    def scores(self, functions: Sequence[str]) -> evoprune.Scores:
        """The base network's channels scored by functions on the scoring images, in one pass for all.

        What the pass gathers is kept with the task, and only what is missing is gathered.
        """
        known, sites = self._statistics(), self.surgeon.sites
        scored = evoprune.score(
            self.base().network,
            functions,
            # Known statistics are of these images: they lie under a key of theirs.
            None if known is not None and known.answers(functions, sites) else Batches(self.scoring),
            sites=sites,
            seed=self.settings.base_seed,
            statistics=known,
        )
        if scored.statistics is not None and scored.statistics is not known:
            self._made["statistics"] = scored.statistics
            if (place := self._statistics_folder) is not None:
                scored.statistics.save(place)
        return scored

    def _statistics(self) -> evoprune.Statistics | None:
        """What was gathered before, here or by another process."""
        place = self._statistics_folder
        if "statistics" not in self._made and place is not None and place.is_dir():
            # Damaged ones, or two halves of different writers: they can be gathered again.
            with contextlib.suppress(SavedFileError):
                self._made["statistics"] = evoprune.Statistics.load(place)
        return self._made.get("statistics")

    @cached_property
    def _statistics_folder(self) -> Path | None:
        """Statistics are of one network, of images in their order, and of one set of sites."""
        if self.folder is None:
            return None
        sites = [f"{site.name} {site.channels}" for site in self.surgeon.sites]
        parts = [self._base_key, self.scoring.key(), *sites]
        return self.folder / f"statistics-{hashlib.sha256(repr(parts).encode()).hexdigest()[:10]}"

    # --- evaluating -------------------------------------------------------------------------------------

    def evaluate(
        self, kept: Channels, seed: int, *, on: On = "validation", watcher: Watcher | None = None
    ) -> Result:
        """Cut, retrain with the task's recipe, judge.

        With a folder, an evaluation that was stopped goes on after its last epoch, and one that is done is
        read back. Fitness is judged on the validation split; `on="test"` is for final results.
        """
        place = self._place(kept, seed)
        if place is not None and (place / f"{on}.json").exists():
            return Result.of(read_json(place / f"{on}.json", RESULT_FORMAT), place / f"{on}.json")
        result, _ = self.retrained(kept, seed, on=on, watcher=watcher)
        if place is not None:
            write_json(place / f"{on}.json", {"format": RESULT_FORMAT, **result.table()})
            (place / CHECKPOINT).unlink(missing_ok=True)
        return result

    def retrained(
        self,
        kept: Channels,
        seed: int,
        *,
        on: On = "validation",
        watcher: Watcher | None = None,
        retrain: bool = True,
    ) -> tuple[Result, nn.Module]:
        """As `evaluate`, with the network itself; its last checkpoint stays in the folder.

        Without `retrain` the network is judged as it is after the cut.
        """
        before = self.base().validation if on == "validation" else self.base_on_test
        if before is None:
            raise TrainingError(
                f"the weights {self.settings.weights} come from elsewhere and have seen the validation "
                "images, so they cannot be judged on them: judge on test, or set weights_held_out = true "
                "if they have not"
            )
        recipe = self.settings.recipe
        network = self.surgeon.cut(kept.channels).to(self.device)
        recalibrate(network, self.data.train, recipe.recalibrate)
        after_cut = after = self.judge(network, on)
        history: History = ()
        if retrain:
            history = train(
                network, self.data.train, recipe, seed=seed, folder=self._place(kept, seed), watcher=watcher
            )
            after = self.judge(network, on)
            _check_judged(after, recipe)
        macs_base, parameters_base = self.surgeon.costs.totals({})
        macs, parameters = self.surgeon.costs.totals({site: len(c) for site, c in kept.channels.items()})
        result = Result(
            on=on,
            seed=seed,
            accuracy=after.top1,
            top5=after.top5,
            accuracy_cut=after_cut.top1,
            top5_cut=after_cut.top5,
            accuracy_base=before.top1,
            top5_base=before.top5,
            images=after.images,
            macs=macs,
            macs_base=macs_base,
            parameters=parameters,
            parameters_base=parameters_base,
            epochs=len(history),
            loss=history[-1].loss if history else None,
        )
        return result, network

    def pruned(self, network: nn.Module, kept: Kept, made: Mapping[str, Any]) -> Pruned:
        """A network that came of a cut, with its record: to save, print or measure."""
        costs = self.surgeon.costs
        return Pruned(
            network=network,
            kept={site: tuple(channels) for site, channels in kept.channels.items()},
            scores=kept.scores,
            before=costs.cost({}),
            after=costs.cost(kept.counts),
            sites=self.surgeon.sites,
            made={"task": self.spec, **made},
            original=self.base().network,
            example_inputs=self.example(),
        )

    @cached_property
    def _base_key(self) -> str:
        return state_key(self.base().network)

    def _place(self, kept: Channels, seed: int) -> Path | None:
        """Where an evaluation lives: whatever changes its result changes the place."""
        if self.folder is None:
            return None
        cut = self.settings.cut
        parts = [
            self._base_key,
            self.data.key,
            config.dump(self.settings.recipe),
            channels_key(kept.channels),
            str(seed),
            f"{cut.selection} {sorted(cut.flatten_features)} {sorted(cut.ignore)}",
        ]
        return self.folder / "evaluations" / hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _check_judged(judged: Accuracy, recipe: Recipe) -> None:
    """The last steps of a training may diverge as well, which none of its own losses tells."""
    if not math.isfinite(judged.loss):
        raise TrainingError(
            f"after {recipe.epochs} epochs with a learning rate of up to {recipe.rate:g} the network gives "
            "outputs that are not finite; a smaller rate, or warmup, usually helps"
        )


def named(name: str, *, folder: str | Path | None = None, device: str = "cpu", **changes: Any) -> Task:
    """A task by name or TOML file, with settings changed: `named("digits", recipe={"epochs": 2})`.

    A change is the new value, or for a table the keys of it that are new. A recipe may be changed to another
    by its name.
    """
    return Task.from_spec(changed(name, changes), folder=folder, device=device)
