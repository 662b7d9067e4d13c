"""One streaming pass over the images: what a plan needs, for every site, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evoprune.allocator import expect_large_blocks
from evoprune.errors import ScoringError
from evoprune.expression.library import Function, resolve_all
from evoprune.pruning.sites import Site, batch_norm_of, filters_of, layer_filters_of
from evoprune.scoring.accumulate import SiteSums
from evoprune.scoring.accumulator import Accumulator
from evoprune.scoring.data import Images, Labels
from evoprune.scoring.groups import Batch, Groups
from evoprune.scoring.plan import Need, Plan, plan
from evoprune.scoring.sample import Drawing, Sample
from evoprune.scoring.watching import device_of, watching

SCATTER_PIXELS = 256
SCATTER_ENTRIES = 2**25
"""A site's scatter matrices, of all images or of each class, are gathered up to so many pixels and entries;
beyond, a sample serves."""

CLASS_MAP_ENTRIES = 2**26
"""So are maps of each class up to so many entries (512 MiB) at a site."""


@dataclass(frozen=True)
class Plans:
    """One plan for each kind of site; `classes` is how many the data has, as far as is known before."""

    functions: tuple[Function, ...]
    classes: int
    by_limits: dict[tuple[bool, bool, bool], Plan]

    @staticmethod
    def of(functions: Sequence[Function], classes: int) -> Plans:
        """Plan with scatter matrices and maps of each class; without them where a site asks for it."""
        return Plans(tuple(functions), classes, {(True, True, True): plan(functions)})

    def at(self, site: Site | SiteStatistics) -> Plan:
        """The plan that what is kept at a site has room for."""
        pixels = site.map_size[0] * site.map_size[1]
        scatter = site.channels * pixels**2
        limits = (
            pixels <= SCATTER_PIXELS and scatter <= SCATTER_ENTRIES,
            self.classes * site.channels * pixels <= CLASS_MAP_ENTRIES,
            self.classes * scatter <= SCATTER_ENTRIES,
        )
        if limits not in self.by_limits:
            small, maps, scatters = limits
            self.by_limits[limits] = plan(
                self.functions, scatter=small, class_maps=maps, class_scatter=scatters
            )
        return self.by_limits[limits]

    @property
    def label_aware(self) -> bool:
        """Whether any function needs labels."""
        return any(f.expr is not None and f.expr.is_label_aware for f in self.functions)


@dataclass(frozen=True)
class SiteStatistics:
    """What is known about one site: its size, and an accumulator for each need."""

    channels: int
    map_size: tuple[int, int]
    gathered: tuple[Accumulator, ...] = ()

    def find(self, need: Need) -> Accumulator | None:
        """The accumulator that answers a need."""
        return next((each for each in self.gathered if each.need.covers(need)), None)


@dataclass(frozen=True)
class Statistics:
    """What passes over the data have gathered, for every site, with what guards against wrong use.

    model and data: digests of the network's parameters and buffers, and of the images and labels in
    their order. classes: the labels in the order of the accumulators' rows; counts: images of each.
    """

    model: str
    data: str
    images: int
    classes: tuple[Any, ...]
    sites: Mapping[str, SiteStatistics]
    sample: Sample | None = None
    sample_size: int = 0
    seed: int = 0
    counts: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    image: tuple[tuple[int, ...], str] = ((), "float32")
    """The shape and type of one image."""
    expected_classes: int = 0
    """How many classes were expected before the pass; plans depend on it."""
    autocast: bool = False
    """Whether the network ran in bfloat16."""

    def answers(self, functions: Iterable[str], sites: Sequence[Site]) -> bool:
        """Whether these functions can be scored without the data."""
        plans = Plans.of(resolve_all(functions), self.expected_classes)
        return lacking(plans, sites, self) is None

    def save(self, folder: str | Path) -> None:
        """Write to a folder: safetensors and JSON."""
        from evoprune.scoring.saving import save_statistics

        save_statistics(self, folder)

    @staticmethod
    def load(folder: str | Path) -> Statistics:
        """Read what `save` wrote; raises SavedFileError where the files are not as they were."""
        from evoprune.scoring.saving import load_statistics

        return load_statistics(folder)

    def __repr__(self) -> str:
        entries = sum(v.numel() for s in self.sites.values() for a in s.gathered for v in a.fields.values())
        sampled = f", a sample of {len(self.sample.images)}" if self.sample is not None else ""
        return (
            f"Statistics({len(self.sites)} sites, {self.images} images, {len(self.classes)} classes, "
            f"{8 * entries / 2**20:.1f} MiB{sampled})"
        )


def gathered(
    model: nn.Module,
    sites: Sequence[Site],
    plans: Plans,
    images: Images,
    *,
    sample_size: int,
    seed: int,
    known: Statistics | None = None,
    autocast: bool = False,
) -> Statistics:
    """Gather in one pass what the plans need and is not known yet.

    Where all is known, the images are only compared with those that it was gathered from. The network is
    left as it was: mode, hooks, gradients and buffers, whatever fails.
    """
    missing = {site.name: missing_of(plans.at(site), site, known) for site in sites}
    sampling = any(plans.at(site).sampled for site in sites)
    if (
        known is not None
        and known.sample is not None
        and (known.sample_size, known.seed) == (sample_size, seed)
    ):
        sampling = False
    if known is not None and known.autocast != autocast and any(missing.values()):
        raise ScoringError(
            f"the statistics were gathered with autocast={known.autocast}, what is missing cannot be with "
            f"autocast={autocast}"
        )
    device = device_of(model)
    if device.type == "cpu":
        expect_large_blocks()
    aware = plans.label_aware
    sums = {
        site.name: SiteSums(missing[site.name], site.map_size, parameters_of(model, site, device))
        for site in sites
        if missing[site.name]
    }
    rows = _Rows()
    drawing = Drawing(sample_size, seed) if sampling else None
    digest = _Digest()
    places: list[Groups] = []

    def see(site: Site, maps: Tensor) -> None:
        maps = maps.float() if maps.element_size() < 4 else maps
        batch = Batch(maps.flatten(2), places[-1])
        if not sums[site.name].add(batch):
            _refuse_non_finite(batch.maps, site)

    watched = [site for site in sites if missing[site.name]]
    with watching(model, watched, see, autocast) as forward:
        for batch, labels in images:
            if labels is None and aware:
                raise ScoringError(unlabelled(plans.functions))
            kinds = rows.of(labels) if labels is not None else None
            _refuse_unannounced(len(rows.labels), plans, watched)
            digest.add(batch, labels)
            if drawing is not None:
                drawing.add(batch, kinds)
            if watched:
                rows_of = torch.zeros(len(batch), dtype=torch.int64) if kinds is None else kinds
                places[:] = [Groups(rows_of.to(device))]
                forward(batch)
            rows.count(kinds, batch)
    if not rows.images:
        raise ScoringError("the data source yields nothing: there is no image to score with")
    data = digest.hexdigest()
    if known is not None and known.data != data:
        raise ScoringError(
            f"the statistics were gathered from other data: {known.images} images with the digest "
            f"{known.data}, here are {rows.images} with {data}; gather them anew"
        )
    if known is not None and drawing is None and not watched:
        return known
    sample = (
        drawing.finish(rows.labelled) if drawing is not None else known.sample if known is not None else None
    )
    found = {}
    counts = torch.tensor(rows.counts if rows.labelled else [rows.images], dtype=torch.float64)
    for site in sites:
        new = sums.pop(site.name).finished(counts) if site.name in sums else ()
        old = known.sites[site.name].gathered if known is not None and site.name in known.sites else ()
        kept = tuple(each for each in old if not any(more.need.covers(each.need) for more in new))
        found[site.name] = SiteStatistics(site.channels, site.map_size, new + kept)
    if known is not None:
        found = {**known.sites, **found}
    return Statistics(
        model=model_digest(model),
        data=data,
        images=rows.images,
        classes=tuple(rows.labels),
        sites=found,
        sample=sample,
        sample_size=sample_size,
        seed=seed,
        counts=counts if rows.labelled else counts[:0],
        image=rows.image,
        expected_classes=plans.classes,
        autocast=autocast,
    )


def lacking(plans: Plans, sites: Sequence[Site], known: Statistics) -> str | None:
    """What statistics do not hold of what the plans need, in words; None where nothing is missing."""
    if plans.label_aware and not known.classes:
        return unlabelled(plans.functions)
    for site in sites:
        if site.name not in known.sites:
            return f"the statistics hold no site {site.name!r}; they have {', '.join(known.sites)}"
        missing = missing_of(plans.at(site), site, known)
        if missing:
            return (
                f"the statistics lack, at site {site.name!r}, {'; '.join(map(str, missing))}; "
                "give the data too and they are gathered"
            )
        if plans.at(site).sampled and known.sample is None:
            return "the statistics hold no sample of images; give the data too and one is drawn"
    return None


def missing_of(plan: Plan, site: Site, known: Statistics | None) -> list[Need]:
    """What a plan needs at a site and is not known."""
    have = known.sites.get(site.name) if known is not None else None
    if have is not None and (have.channels, have.map_size) != (site.channels, site.map_size):
        raise ScoringError(
            f"the statistics are of another site {site.name!r}: theirs has {have.channels} channels of "
            f"{list(have.map_size)} pixels, this one {site.channels} of {list(site.map_size)}"
        )
    return [need for need in plan.needs if have is None or have.find(need) is None]


def unlabelled(functions: Sequence[Function]) -> str:
    """What to say of functions that need labels where there are none."""
    aware = [f.name for f in functions if f.expr is not None and f.expr.is_label_aware]
    rest = [f.name for f in functions if f.name not in aware]
    others = (
        f"those that need none: {', '.join(rest)}" if rest else "of the functions given none does without"
    )
    return f"{', '.join(aware)} need labels, one class per image, and the data has none such; {others}"


class _Rows:
    """Labels as rows of the accumulators, in the order in which they come."""

    def __init__(self) -> None:
        self.labels: dict[Any, int] = {}
        self.counts: list[int] = []
        self.images = 0
        self.labelled = False
        self.image: tuple[tuple[int, ...], str] = ((), "float32")

    def of(self, labels: Labels) -> Tensor:
        self.labelled = True
        return torch.tensor([self.labels.setdefault(each, len(self.labels)) for each in labels])

    def count(self, kinds: Tensor | None, images: Tensor) -> None:
        self.images += len(images)
        self.image = tuple(images.shape[1:]), str(images.dtype).removeprefix("torch.")
        if kinds is not None:
            self.counts += [0] * (len(self.labels) - len(self.counts))
            for kind, number in zip(*torch.unique(kinds, return_counts=True), strict=True):
                self.counts[int(kind)] += int(number)


def _refuse_unannounced(classes: int, plans: Plans, sites: Sequence[Site]) -> None:
    """Raise where more classes come than anybody said, so many that a map of each has no room."""
    if classes <= plans.classes:
        return
    for site in sites:
        chosen, other = plans.at(site), replace(plans, classes=classes).at(site)
        if chosen.needs != other.needs:
            names = [plans.functions[i].name for i, _ in other.sampled if i in chosen.streamed]
            raise ScoringError(
                f"{', '.join(names)} would keep a map or scatter matrix for each class, too many at site "
                f"{site.name!r}: the data has {classes} classes or more; say how many with classes=…, and a "
                "sample of images serves"
            )


def _refuse_non_finite(maps: Tensor, site: Site) -> None:
    """Name the site and channels of maps `[image, channel, pixel]` that are not finite.

    A sum or product of finite ones that overflows is left to the functions that read it.
    """
    wrong = (~torch.isfinite(maps)).any(-1).any(0).nonzero()[:, 0].tolist()
    if wrong:
        some = ", ".join(map(str, wrong[:5])) + (" and more" if len(wrong) > 5 else "")
        raise ScoringError(
            f"site {site.name!r} has activations that are not finite, in channels {some} of {site.channels}"
        )


def parameters_of(model: nn.Module, site: Site, device: torch.device) -> dict[str, Tensor]:
    """The operands that are not maps, as `[1, channel or 1, …]` in float64."""
    own = filters_of(model, site).flatten(1).to(device, torch.float64)
    layer = layer_filters_of(model, site).flatten(1).to(device, torch.float64)
    norm = batch_norm_of(model, site).to(device, torch.float64)
    return {"W": layer[None, None], "W_I": own[None], "B": norm[None]}


def model_digest(model: nn.Module) -> str:
    """A digest of every parameter and buffer, of the kinds of the modules and their settings.

    (Such as strides and the ε of a batch-norm; addresses, which the name of a function holds, say nothing.)
    """
    digest = blake2b(digest_size=16)
    for name, module in model.named_modules():
        settings = re.sub(r"0x[0-9a-f]+", "", module.extra_repr())
        digest.update(f"{name} {type(module).__qualname__}({settings})".encode())
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(_bytes(value))
    return digest.hexdigest()


class _Digest:
    """Of images and labels in their order, however they are split into batches."""

    def __init__(self) -> None:
        self._images = blake2b(digest_size=16)
        self._labels = blake2b(digest_size=16)
        self._kind = ""

    def add(self, images: Tensor, labels: Labels | None) -> None:
        self._kind = f"{tuple(images.shape[1:])} {images.dtype}"
        self._images.update(_bytes(images))
        for label in labels or []:
            self._labels.update(repr(label).encode() + b",")

    def hexdigest(self) -> str:
        parts = self._images.digest() + self._labels.digest() + self._kind.encode()
        return blake2b(parts, digest_size=16).hexdigest()


def _bytes(value: Tensor) -> Any:
    flat = value.detach().cpu().contiguous().flatten()
    return np.asarray(flat.view(torch.uint8)).data
