"""Summaries → matplotlib figures, for papers: PNG and SVG."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evoprune.errors import MissingExtraError
from evoprune.report import summaries
from evoprune.report.reading import RunView

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RED, GREEN, BLUE, GREY = "#c2372e", "#2b7a4b", "#2f62a8", "#8a949c"
COLOURS = (
    *(RED, BLUE, GREEN, "#9a6300", "#7a4fa3"),
    *("#2a8a92", "#b3447c", "#5e6870", "#8c9a1c", "#1d2226"),
)
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e9eb",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "axes.edgecolor": "#5e6870",
    "svg.hashsalt": "evoprune",  # the same figure is the same file
}


SAVED = {"same function": GREEN, "same channels": BLUE, "cut by index": GREY}
"""The colours of the reasons for saving an evaluation, as on the page."""

DOTTED = 3
"""Of more runs than these the curves alone are drawn, and not each evaluation."""


def plane(width: float = 5.6, height: float = 3.6) -> tuple[Figure, Axes]:
    """An empty figure with one pair of axes. No window system and no global state is touched."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("drawing figures", "report") from None
    with rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.add_subplot()


def save(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """As PNG and SVG."""
    from matplotlib import rc_context

    png, svg = stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg")
    with rc_context(STYLE), warnings.catch_warnings():  # type: ignore[arg-type]
        warnings.filterwarnings("ignore", "Glyph .* missing")  # of names that no font has, such as emoji
        figure.savefig(png, dpi=200)
        figure.savefig(svg, metadata={"Date": None})
    return png, svg


def of_runs(runs: Sequence[RunView], *, ablation: bool = False) -> dict[str, Figure]:
    """The figures of a report, by file name."""
    judged = [run for run in runs if run.judged]
    found: dict[str, Figure] = {}
    if judged:
        found["progress"] = progress(judged)
    names = Counter(run.name for run in runs)
    for number, run in enumerate(judged, start=1):
        # Of runs in different folders two may have one name.
        suffix = "" if len(runs) == 1 else f"-{run.name}" if names[run.name] == 1 else f"-{run.name}-{number}"
        found[f"size{suffix}"] = by_size(run)
        found[f"usage{suffix}"] = usage(run)
        found[f"diversity{suffix}"] = diversity(run)
        found[f"effort{suffix}"] = effort(run)
    if ablation:
        found["combination"] = combination(runs)
    return found


def progress(runs: Sequence[RunView]) -> Figure:
    """The paper's figure: dots are evaluations, lines the best and the top quarter; runs differ in colour."""
    figure, axes = plane()
    alone = len(runs) == 1
    for number, run in enumerate(runs):
        found = summaries.progress(run)
        own = COLOURS[number % len(COLOURS)]
        if len(runs) <= DOTTED:
            valid = [each for each in run.judged if not each.error]
            axes.plot(
                [each.individual.generation + 0.12 * (number - (len(runs) - 1) / 2) for each in valid],
                [100 * each.fitness for each in valid],
                ".",
                color=GREY if alone else own,
                alpha=0.45 if alone else 0.35,
                markersize=4,
                label="evaluations" if alone else None,
            )
        name = "best" if alone else plain(run.name if len(run.name) <= 40 else f"{run.name[:39]}…")
        mark = "." if len(found.generations) == 1 else None  # a line of one point is not seen
        for values, colour, style, label in (
            (found.best, RED if alone else own, "-", name),
            (found.top, GREEN if alone else own, "-" if alone else ":", "top 25 %" if alone else None),
        ):
            y = [100 * value for value in values]
            axes.plot(found.generations, y, marker=mark, ls=style, color=colour, linewidth=1.8, label=label)
    if not alone:
        for style, label in (("-", "best"), (":", "top 25 %")):
            axes.plot([], [], style, color=GREY, label=label)
    last = max(each.individual.generation for run in runs for each in run.judged)
    axes.set(xlabel="generation", ylabel="fitness (%)", xlim=(-0.5, last + 0.5))
    if window := summaries.window(runs):
        axes.set_ylim(*(100 * edge for edge in window))
    _whole_numbers(axes)
    legend(figure, loc="outside upper center", ncols=3)
    return figure


def by_size(run: RunView) -> Figure:
    """The fittest function of every size, and the steps that no smaller one reaches."""
    figure, axes = plane()
    hall = summaries.of_sizes(run)
    x, y = [e.individual.expr.size for e in hall], [100 * e.fitness for e in hall]
    axes.plot(x, y, "o", color=GREY, markersize=4, label="fittest of its size")
    front = summaries.front(run)
    x, y = [e.individual.expr.size for e in front], [100 * e.fitness for e in front]
    axes.step(x, y, "o-", where="post", color=RED, markersize=5, label="no smaller one is as fit")
    axes.set(xlabel="nodes of the function", ylabel="fitness (%)")
    _whole_numbers(axes)
    legend(figure, loc="outside upper center", ncols=2)
    return figure


def usage(run: RunView) -> Figure:
    """Shares of each generation's functions that use a name."""
    found = summaries.usage(run)
    figure, axes = plane(6.4, 1.2 + 0.17 * len(found.names))
    image = axes.imshow(
        [[100 * share for share in row] for row in found.shares],
        aspect="auto",
        cmap="Reds",
        vmin=0,
        vmax=100,
        interpolation="nearest",
    )
    axes.set_yticks(range(len(found.names)), list(found.names), fontsize=7)
    axes.set_xticks(range(len(found.generations)), [str(g) for g in found.generations], fontsize=7)
    axes.grid(False)
    axes.set(xlabel="generation")
    figure.colorbar(image, ax=axes, label="% of functions", fraction=0.04, pad=0.02)
    return figure


def diversity(run: RunView) -> Figure:
    """Distinct functions and cuts of each generation."""
    found = summaries.diversity(run)
    figure, axes = plane()
    for values, colour, label in (
        (found.functions, RED, "distinct functions"),
        (found.cuts, GREEN, "distinct cuts"),
    ):
        axes.plot(found.generations, [100 * value for value in values], "o-", color=colour, ms=4, label=label)
    axes.set(xlabel="generation", ylabel="% of the generation", ylim=(0, 103))
    _whole_numbers(axes)
    legend(figure, loc="outside upper center", ncols=2)
    return figure


def effort(run: RunView) -> Figure:
    """Retrainings done and saved."""
    found = summaries.effort(run)
    figure, axes = plane()
    bottom = [0] * len(found.generations)
    parts = [("retrained", found.retrained, RED)]
    parts += [(f"saved: {reason}", counts, SAVED[reason]) for reason, counts in found.saved.items()]
    for label, counts, colour in parts:
        axes.bar(found.generations, counts, bottom=bottom, color=colour, label=label, width=0.75)
        bottom = [below + count for below, count in zip(bottom, counts, strict=True)]
    axes.set(xlabel="generation", ylabel="evaluations")
    axes.grid(False, axis="x")
    _whole_numbers(axes)
    axes.set_ylim(0, 1.28 * max(bottom, default=1))
    legend(axes, loc="upper right", ncols=2)
    return figure


def combination(runs: Sequence[RunView]) -> Figure:
    """The paper's figure of the combination schemes: the judge's verdict over α."""
    judge, found = summaries.schemes(runs)
    figure, axes = plane()
    for scheme, colour, mark in (("geometric", RED, "o-"), ("arithmetic", BLUE, "s--")):
        chosen = [each for each in found if each.combine == scheme]
        if chosen:
            x, y = [each.alpha for each in chosen], [100 * each.accuracy for each in chosen]
            axes.plot(x, y, mark, color=colour, label=f"{scheme} mean")
    axes.set(xlabel="α", ylabel=f"accuracy on {plain(judge)} (%)", xlim=(-0.04, 1.04))
    legend(axes)
    return figure


def legend(where: Axes | Figure, **place: Any) -> None:
    """A legend without a frame."""
    where.legend(frameon=False, fontsize=8, **place)


def plain(text: str) -> str:
    """Text in which matplotlib sees no formula, and no label that a legend leaves out."""
    return ("\u200b" if text.startswith("_") else "") + text.replace("$", r"\$")


def _whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
