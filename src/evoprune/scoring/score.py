"""Scoring a network: functions and data in, scores per function and site out."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from evoprune.errors import ExpressionError, MissingExtraError, ScoringError
from evoprune.expression.library import Function, resolve, resolve_all
from evoprune.expression.tree import Expr
from evoprune.plain import plain
from evoprune.pruning.inputs import usable_device
from evoprune.pruning.sites import Site, find_sites, first_read
from evoprune.scoring.arrays import random_scores
from evoprune.scoring.data import Images, images_of, require_whole
from evoprune.scoring.execute import array_leaves, evaluate
from evoprune.scoring.leaves import StatisticLeaves
from evoprune.scoring.sample import Sample
from evoprune.scoring.statistics import (
    Plans,
    Statistics,
    gathered,
    lacking,
    model_digest,
    parameters_of,
)
from evoprune.scoring.steps import MAPS, compile
from evoprune.scoring.watching import device_of, watching

if TYPE_CHECKING:
    import pandas

SAMPLE = 2000
"""Images in the sample on which expressions are evaluated that cannot be streamed."""

MAPS_AT_ONCE = 2**30
"""Bytes of feature maps of the sample that are held at once."""

Functions = str | Expr | Function | Iterable[str | Expr | Function]


@dataclass(frozen=True)
class Scores(Mapping[str, Mapping[str, Tensor]]):
    """Scores by function and site: `scores["xi_star"]["conv1"]` is a float64 tensor `[channel]`.

    modes: by function and site, `streamed` over all images, on a `sample` of them, or from `parameters`
    alone. statistics: what was gathered, for scoring more functions later.
    """

    by_function: Mapping[str, Mapping[str, Tensor]]
    modes: Mapping[str, Mapping[str, str]]
    images: int
    sampled_images: int
    statistics: Statistics | None = field(default=None, repr=False, compare=False)

    def __getitem__(self, function: str | Expr | Function) -> Mapping[str, Tensor]:
        """The scores of a function, by its name, a text of it, or its tree."""
        name = function
        if not isinstance(function, str) or function not in self.by_function:
            with suppress(ExpressionError):
                name = resolve(function).name
        if not isinstance(name, str) or name not in self.by_function:
            raise KeyError(f"no scores of {function!r}; there are {', '.join(self.by_function)}")
        return self.by_function[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_function)

    def __len__(self) -> int:
        return len(self.by_function)

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the sites, in forward order."""
        return tuple(next(iter(self.by_function.values()), {}))

    def constant(self, function: str) -> tuple[str, ...]:
        """The sites at which a function gives every channel the same score."""
        return tuple(name for name, score in self[function].items() if is_constant(score))

    def rows(self) -> Iterator[tuple[str, str, int, float, str]]:
        """Every score as (function, site, channel, score, mode)."""
        for function, of_sites in self.by_function.items():
            for site, score in of_sites.items():
                for channel, value in enumerate(score.tolist()):
                    yield function, site, channel, value, self.modes[function][site]

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame with a row per function, site and channel."""
        try:
            import pandas
        except ImportError:
            raise MissingExtraError("to_pandas", "pandas") from None
        return pandas.DataFrame(self.rows(), columns=list(COLUMNS))

    def to_csv(self, path: str | Path | None = None) -> str:
        """The same as CSV text, also written to a file where a path is given."""
        import csv
        import io

        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows((*row[:3], repr(row[3]), row[4]) for row in self.rows())
        if path is not None:
            try:
                Path(path).write_text(text.getvalue(), encoding="utf-8")
            except OSError as error:
                raise ScoringError(f"the scores cannot be written to {path}: {error}") from None
        return text.getvalue()

    def __str__(self) -> str:
        return _table(self)


COLUMNS = ("function", "site", "channel", "score", "mode")


def is_constant(score: Tensor) -> bool:
    """Whether all channels score the same, up to rounding."""
    spread = float(score.max() - score.min())
    return spread <= 1e-9 * float(score.abs().max())


def score(
    model: nn.Module,
    functions: Functions,
    data: Any = None,
    *,
    sites: Sequence[Site] | None = None,
    example_inputs: Any = None,
    device: str | torch.device | None = None,
    images: int | None = None,
    sample: int = SAMPLE,
    seed: int = 0,
    classes: int | None = None,
    batch_size: int = 128,
    autocast: bool = False,
    statistics: Statistics | None = None,
) -> Scores:
    """Score every channel of a network by one or many functions, in one pass over the data.

    functions: names of the library, texts, or expressions.
    data: a DataLoader or another iterable of (images, labels), or a pair of tensors. Functions of
        parameters alone (`l1`, `bn_scale`, `fpgm`) need none; give `example_inputs` or `sites` then.
    sites: what to score; `evoprune.sites(model, …)` where not given.
    device: where to run; the model's own place where not given. The model itself stays where it is.
    images: use only the first so many images.
    sample: images in the seeded, class-balanced sample for functions that need single images.
    seed: of that sample, and of the function `random`.
    classes: how many classes there are, where the data does not say; labels must then be 0 … classes - 1.
    batch_size: for data given as tensors.
    autocast: run the network in bfloat16.
    statistics: what an earlier call gathered; only what is missing is gathered. Without `data`
        everything must be there. (For sites that were not found by default, give `sites` again.)

    >>> scores = evoprune.score(model, ["xi_star", "l1"], (images, labels))  # doctest: +SKIP
    >>> scores["xi_star"]["conv1"]  # doctest: +SKIP
    """
    found = _functions(functions)
    _check_arguments(model, statistics, sample, seed)
    source = None if data is None else images_of(data, batch_size=batch_size, limit=images, classes=classes)
    plans = _plans(found, source, statistics)
    if example_inputs is None and source is None and statistics is not None:
        shape, dtype = statistics.image
        example_inputs = torch.zeros(1, *shape, dtype=getattr(torch, dtype), device=device_of(model))
    sites = _sites(model, sites, example_inputs, source)
    reads_maps = any(plans.at(site).reads_maps for site in sites)
    with _placed(model, device) as placed:
        if reads_maps:
            statistics = _gathered(placed, sites, plans, source, statistics, sample, seed, autocast)
            _require_others(statistics, found)
        return _evaluate(placed, found, plans, sites, statistics if reads_maps else None, seed, autocast)


def gather(
    model: nn.Module,
    functions: Functions,
    data: Any,
    *,
    sites: Sequence[Site] | None = None,
    device: str | torch.device | None = None,
    images: int | None = None,
    sample: int = SAMPLE,
    seed: int = 0,
    classes: int | None = None,
    batch_size: int = 128,
    autocast: bool = False,
    statistics: Statistics | None = None,
) -> Statistics:
    """Gather in one pass what the functions need, without scoring; arguments as in `score`.

    Keep the result with `Statistics.save`, and score these and other functions from it later.
    """
    _check_arguments(model, statistics, sample, seed)
    source = images_of(data, batch_size=batch_size, limit=images, classes=classes)
    sites = _sites(model, sites, None, source)
    plans = _plans(_functions(functions), source, statistics)
    with _placed(model, device) as placed:
        return _gathered(placed, sites, plans, source, statistics, sample, seed, autocast)


def _functions(functions: Functions) -> tuple[Function, ...]:
    found = {function.name: function for function in resolve_all(functions)}
    if not found:
        raise ScoringError("no function is given to score with")
    return tuple(found.values())


def _check_arguments(model: object, statistics: object, sample: object, seed: object) -> None:
    if not isinstance(model, nn.Module):
        raise ScoringError(f"the model must be a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(statistics, Statistics | None):
        raise ScoringError(f"statistics must be what gather returns, got {type(statistics).__name__}")
    require_whole("sample", sample, 2)  # of one image, there are no others
    require_whole("seed", seed, 0)


def _plans(functions: Sequence[Function], source: Images | None, known: Statistics | None) -> Plans:
    classes = (
        known.expected_classes if known is not None else source.class_count() if source is not None else 0
    )
    return Plans.of(functions, classes)


def _sites(
    model: nn.Module, sites: Sequence[Site] | None, example_inputs: Any, source: Images | None
) -> tuple[Site, ...]:
    if sites is None:
        if example_inputs is None:
            if source is None:
                raise ScoringError("give data, or example_inputs to find the network's sites with")
            example_inputs = source.first().to(device_of(model))
        sites = find_sites(model, example_inputs).sites
    if not sites:
        raise ScoringError(
            "the network has no sites: it has no layer whose channels can be removed "
            "(those of the last layer are its output)"
        )
    return tuple(_of_model(model, site) for site in ([sites] if isinstance(sites, Site) else sites))


def _of_model(model: nn.Module, site: Site) -> Site:
    """A site, if it is one of this network's."""
    if not isinstance(site, Site):
        raise ScoringError(f"sites must be what evoprune.sites returns, got {type(site).__name__}")
    modules = dict(model.named_modules())
    for name in (site.writer.module, first_read(site).module):
        if name not in modules:
            raise ScoringError(f"site {site.name!r} is not of this network, which has no layer {name!r}")
    return site


class _placed:
    """The model where it is to run; elsewhere than where it is, a copy."""

    def __init__(self, model: nn.Module, device: str | torch.device | None) -> None:
        self._model = model
        wanted = usable_device(device) if device is not None else device_of(model)
        if wanted != device_of(model):
            self._model = copy.deepcopy(model).to(wanted)

    def __enter__(self) -> nn.Module:
        return self._model

    def __exit__(self, *error: object) -> None:
        del self._model


def _gathered(
    model: nn.Module,
    sites: Sequence[Site],
    plans: Plans,
    source: Images | None,
    known: Statistics | None,
    sample: int,
    seed: int,
    autocast: bool,
) -> Statistics:
    if known is not None and known.model != (digest := model_digest(model)):
        raise ScoringError(
            "the statistics were gathered from another network, or one with other weights "
            f"(their digest is {known.model}, this network's {digest}); gather them anew"
        )
    if source is not None:
        return gathered(
            model, sites, plans, source, sample_size=sample, seed=seed, known=known, autocast=autocast
        )
    if known is None:
        names = [f.name for f in plans.functions if f.expr is not None and f.expr.operands & MAPS]
        raise ScoringError(f"these functions read feature maps and need data: {', '.join(names)}")
    if problem := lacking(plans, sites, known):
        raise ScoringError(problem)
    return known


def _require_others(statistics: Statistics, functions: Sequence[Function]) -> None:
    outside = [f.name for f in functions if f.expr is not None and "F-" in f.expr.operands]
    if len(statistics.classes) == 1 and outside:
        raise ScoringError(
            f"{', '.join(outside)} read F-, the images of other classes, but all {statistics.images} labels "
            f"are {statistics.classes[0]!r}"
        )


def _evaluate(
    model: nn.Module,
    functions: Sequence[Function],
    plans: Plans,
    sites: Sequence[Site],
    statistics: Statistics | None,
    seed: int,
    autocast: bool,
) -> Scores:
    values: dict[str, dict[str, Tensor]] = {f.name: {} for f in functions}
    modes: dict[str, dict[str, str]] = {f.name: {} for f in functions}
    cpu = torch.device("cpu")
    for site in sites:
        chosen = plans.at(site)
        parameters = parameters_of(model, site, cpu)
        for function in functions:
            if function.expr is None:
                drawn = random_scores(site.channels, seed, site.name)
                values[function.name][site.name] = torch.from_numpy(drawn)
                modes[function.name][site.name] = "parameters"
        if chosen.streamed:
            leaves = StatisticLeaves.of(site, statistics, parameters)
            scored = evaluate(chosen.program, leaves, site.channels)
            for position, row in zip(chosen.streamed, scored, strict=True):
                function = functions[position]
                assert function.expr is not None
                reads = function.expr.operands & MAPS
                values[function.name][site.name] = row
                modes[function.name][site.name] = "streamed" if reads else "parameters"
    if statistics is not None and statistics.sample is not None:
        sampled = {site.name: plans.at(site).sampled for site in sites}
        scored_rows = _on_sample(model, functions, sites, sampled, statistics.sample, autocast)
        for (name, position), row in scored_rows.items():
            values[functions[position].name][name] = row
            modes[functions[position].name][name] = "sample"
    order = [site.name for site in sites]
    scores = Scores(
        {name: {site: of_sites[site] for site in order} for name, of_sites in values.items()},
        {name: {site: of_sites[site] for site in order} for name, of_sites in modes.items()},
        statistics.images if statistics is not None else 0,
        len(statistics.sample.images) if statistics is not None and statistics.sample is not None else 0,
        statistics,
    )
    _require_finite(scores)
    return scores


def _require_finite(scores: Scores) -> None:
    for name, of_sites in scores.items():
        for site, score in of_sites.items():
            wrong = (~torch.isfinite(score)).nonzero()[:, 0].tolist()
            if wrong:
                raise ScoringError(
                    f"{name} gives {len(wrong)} of {len(score)} channels of site {site!r} scores that are "
                    f"not finite, such as {float(score[wrong[0]])} to channel {wrong[0]}"
                )


def _on_sample(
    model: nn.Module,
    functions: Sequence[Function],
    sites: Sequence[Site],
    sampled: Mapping[str, Sequence[tuple[int, str]]],
    sample: Sample,
    autocast: bool,
) -> dict[tuple[str, int], Tensor]:
    """Scores `[channel]` by site and position of the function, from the rows of the sample.

    As many sites, or channels of a site, at a time as memory holds maps of.
    """
    rows: dict[tuple[str, int], list[Tensor]] = {}
    for group in _groups([site for site in sites if sampled[site.name]], len(sample.images)):
        for site, channels, maps in _maps_of_sample(model, group, sample, autocast):
            positions = [position for position, _ in sampled[site.name]]
            known = parameters_of(model, site, torch.device("cpu"))
            leaves = array_leaves(
                maps,
                site.map_size,
                sample.classes,
                known["W"][0, 0],
                known["W_I"][0, channels],
                known["B"][0, channels],
            )
            expressions = [expr for i in positions if (expr := functions[i].expr) is not None]
            scored = evaluate(compile(expressions), leaves, maps.shape[0])
            for position, row in zip(positions, scored, strict=True):
                rows.setdefault((site.name, position), []).append(row)
    return {key: torch.cat(parts) for key, parts in rows.items()}


_Piece = tuple[Site, slice]  # a site, and which of its channels


def _maps_of_sample(
    model: nn.Module, group: Sequence[_Piece], sample: Sample, autocast: bool
) -> Iterator[tuple[Site, slice, Tensor]]:
    """The maps `[channel, image, pixel]` of some pieces, from one pass over the sample."""
    pieces = {site.name: channels for site, channels in group}
    parts: dict[str, list[Tensor]] = {name: [] for name in pieces}

    def see(site: Site, maps: Tensor) -> None:
        part = maps[:, pieces[site.name]].flatten(2)
        part = part.float() if part.element_size() < 4 else part
        parts[site.name].append(part.to("cpu", copy=True, memory_format=torch.contiguous_format))

    with watching(model, [site for site, _ in group], see, autocast) as forward:
        for images in torch.split(sample.images, 128):
            forward(images)
    for site, channels in group:
        maps = torch.cat(parts.pop(site.name)).transpose(0, 1)
        if not bool(torch.isfinite(maps).all()):
            raise ScoringError(f"site {site.name!r} has activations that are not finite")
        yield site, channels, maps


def _groups(sites: Sequence[Site], images: int) -> Iterator[list[_Piece]]:
    """Pieces whose maps of so many images fit in memory together."""
    group: list[_Piece] = []
    held = 0
    for site in sites:
        size = 4 * images * site.map_size[0] * site.map_size[1]
        width = max(1, MAPS_AT_ONCE // size)
        for start in range(0, site.channels, width):
            piece = slice(start, min(start + width, site.channels))
            more = size * (piece.stop - piece.start)
            # One piece of a site at a time: the pass shows a site's maps once.
            if group and (held + more > MAPS_AT_ONCE or group[-1][0] is site):
                yield group
                group, held = [], 0
            group.append((site, piece))
            held += more
    if group:
        yield group


def _table(scores: Scores) -> str:
    """A row per site, a column per function: how far the scores range, and how they were made."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("site")
    table.add_column("channels", justify="right")
    for function in scores:
        table.add_column(function, justify="right", overflow="fold")
    for site in scores.sites:
        cells = []
        for function in scores:
            score = scores[function][site]
            mark = "*" if scores.modes[function][site] == "sample" else ""
            cells.append(f"{float(score.min()):.3g} … {float(score.max()):.3g}{mark}")
        table.add_row(site, str(len(next(iter(scores.values()))[site])), *cells)
    text = f"scores: lowest … highest of each site ({scores.images} images)\n"
    text += plain(table, width=max(80, 24 + 24 * len(scores)))
    if any(mode == "sample" for modes in scores.modes.values() for mode in modes.values()):
        text += f"* on a class-balanced sample of {scores.sampled_images} images\n"
    return text.rstrip("\n")
