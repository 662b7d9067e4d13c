"""Summaries → the traces and layouts that plotly draws, as plain dicts; colours by name of a role.

A trace's `name` and `texts` (what its dots tell) and the titles are text; the page escapes them, as plotly
would take markup in them for markup.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from evoprune.evolution.ledger import Individual, Judged, Place
from evoprune.report import summaries
from evoprune.report.reading import RunView

Chart = dict[str, Any]

NAMED_CURVES = 3
"""Of more runs than these the legend has each run once, and not each of its curves."""

LABELLED = 40
"""Of more ancestors than these the fitness is not written beside the dots: labels would hide each other."""


def points(runs: Sequence[RunView]) -> dict[str, Any]:
    """Every evaluation as columns, texts and origins once each: small, and quick to read for a browser."""
    texts: dict[str, int] = {}
    errors: dict[str, int] = {}
    origins: dict[str, int] = {}
    columns: dict[str, list[Any]] = {
        name: [] for name in ("run", "generation", "index", "text", "fitness", "origin", "parents", "size")
    }
    accuracies: list[list[float | None]] = []
    failed: dict[int, int] = {}
    for number, run in enumerate(runs):
        for each in run.judged:
            one = each.individual
            if each.error:
                failed[len(accuracies)] = errors.setdefault(each.error, len(errors))
            columns["run"].append(number)
            columns["generation"].append(one.generation)
            columns["index"].append(one.index)
            columns["text"].append(texts.setdefault(str(one.expr), len(texts)))
            columns["fitness"].append(_rounded(each.fitness))
            columns["origin"].append(origins.setdefault(summaries.origin(one), len(origins)))
            columns["parents"].append([list(parent) for parent in one.parents])
            columns["size"].append(one.expr.size)
            accuracies.append([_rounded(each.accuracies.get(task)) for task in run.tasks])
    return columns | {
        "accuracies": accuracies,
        "failed": failed,
        "texts": list(texts),
        "errors": list(errors),
        "origins": list(origins),
        "runs": [run.name for run in runs],
        "tasks": [list(run.tasks) for run in runs],
    }


def progress(runs: Sequence[RunView]) -> Chart:
    """The paper's figure of the progress; the dots are put in by the page, from `points`."""
    alone = len(runs) == 1
    traces = []
    for number, run in enumerate(runs):
        found = summaries.progress(run)
        prefix = "" if alone else f"{run.name}: "
        for label, values, role, dash in (
            ("best so far", found.best, "best", "solid"),
            ("top 25 %", found.top, "top", "solid" if alone else "dot"),
        ):
            traces.append(
                {
                    "type": "scatter",
                    # A line of one point is not seen.
                    "mode": "lines" if len(values) > 1 else "lines+markers",
                    "name": prefix + label if len(runs) <= NAMED_CURVES else run.name,
                    "x": list(found.generations),
                    "y": _percent(values),
                    "line": {"width": 2.5, "dash": dash},
                    "role": role if alone else f"run{number}",
                    "legendgroup": prefix + ("" if prefix else label),
                    "showlegend": role == "best" or len(runs) <= NAMED_CURVES,
                    "hovertemplate": "generation %{x}: %{y:.2f} %",
                }
            )
    chart = _chart("progress", traces, x="generation", y="fitness (%)")
    last = max((each.individual.generation for run in runs for each in run.judged), default=0)
    chart["layout"]["xaxis"]["range"] = [-0.5, last + 0.5]
    chart["layout"]["yaxis"]["rangemode"] = "nonnegative"
    if window := summaries.window(runs):
        chart["layout"]["yaxis"]["range"] = _percent(window)
    return chart


def by_size(run: RunView) -> Chart:
    """The fittest of each size, and those that no smaller one is as fit as."""
    hall = summaries.of_sizes(run)
    found = summaries.front(run)
    every = {
        "type": "scatter",
        "mode": "markers",
        "name": "fittest of its size",
        "x": [each.individual.expr.size for each in hall],
        "y": _percent([each.fitness for each in hall]),
        "texts": [_told(each) for each in hall],
        "marker": {"size": 7},
        "role": "dot",
    }
    best = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "no smaller one is as fit",
        "x": [each.individual.expr.size for each in found],
        "y": _percent([each.fitness for each in found]),
        "texts": [_told(each) for each in found],
        "line": {"shape": "hv", "width": 2},
        "marker": {"size": 9},
        "role": "best",
    }
    return _chart("size", [every, best], x="nodes of the function", y="fitness (%)")


def ancestry(run: RunView, place: Place) -> Chart:
    """A function's ancestors by generation, with lines from parents to children."""
    found = summaries.ancestry(run, place)
    heights = _heights([one.place for one in found.members])
    lines: Chart = {
        "type": "scatter",
        "mode": "lines",
        "x": [],
        "y": [],
        "role": "edge",
        "line": {"width": 1},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    for parent, child in found.edges:
        lines["x"] += [parent[0], child[0], None]
        lines["y"] += [heights[parent], heights[child], None]
    traces = [lines]
    origins: dict[str, list[Individual]] = {}
    for one in found.members:
        origins.setdefault(summaries.origin(one), []).append(one)
    for name, members in origins.items():
        judged = [run.ledger.judged.get(one.place) for one in members]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers+text" if len(found.members) <= LABELLED else "markers",
                "name": name,
                "x": [one.generation for one in members],
                "y": [heights[one.place] for one in members],
                "text": ["" if each is None else f"{100 * each.fitness:.1f}" for each in judged],
                "textposition": "top center",
                "texts": [
                    f"{one.expr}\n{one.generation}.{one.index}, {one.origin}"
                    + ("" if each is None else f"\nfitness {100 * each.fitness:.2f} %")
                    for one, each in zip(members, judged, strict=True)
                ],
                "marker": {"size": 11},
                "role": name,
            }
        )
    chart = _chart("ancestry", traces, x="generation", y="")
    generations = Counter(one.generation for one in found.members)
    chart["layout"]["yaxis"] |= {"visible": False, "range": _around(heights.values())}
    chart["layout"]["xaxis"]["range"] = _around(generations)
    chart["height"] = min(460, 150 + 34 * max(generations.values()))
    return chart


def usage(run: RunView) -> Chart:
    """Which names the functions of each generation use, as a map of shares."""
    found = summaries.usage(run)
    trace = {
        "type": "heatmap",
        "x": list(found.generations),
        "y": list(found.names),
        "z": [[round(100 * share, 1) for share in row] for row in found.shares],
        "zmin": 0,
        "zmax": 100,
        "xgap": int(len(found.generations) <= 60),  # of very many the gaps would be most of it
        "ygap": 1,
        "role": "heat",
        "colorbar": {"ticksuffix": " %", "thickness": 12},
        "hovertemplate": "%{y} in generation %{x}: %{z:.0f} % of functions<extra></extra>",
    }
    chart = _chart("usage", [trace], x="generation", y="")
    chart["layout"]["yaxis"] |= {"autorange": "reversed", "dtick": 1, "showgrid": False}
    chart["height"] = 140 + 17 * len(found.names)
    return chart


def diversity(run: RunView) -> Chart:
    """How many functions and cuts of a generation are distinct, and how large the functions are."""
    found = summaries.diversity(run)
    x = list(found.generations)
    traces = [
        _line("distinct functions (%)", x, _percent(found.functions), "best"),
        _line("distinct cuts (%)", x, _percent(found.cuts), "top"),
        _line("mean size (nodes, right)", x, [round(v, 2) for v in found.size], "third") | {"yaxis": "y2"},
    ]
    chart = _chart("diversity", traces, x="generation", y="distinct (%)")
    chart["layout"]["yaxis"]["rangemode"] = "tozero"
    chart["layout"]["yaxis2"] = {
        "overlaying": "y",
        "side": "right",
        "title": {"text": "nodes"},
        "rangemode": "tozero",
        "showgrid": False,
        "tickmode": "auto",
    }
    return chart


def effort(run: RunView) -> Chart:
    """Retrainings done and saved, by generation."""
    found = summaries.effort(run)
    bars = [("retrained", found.retrained, "best"), *((k, v, k) for k, v in found.saved.items())]
    traces = [
        {
            "type": "bar",
            "name": name if role == "best" else f"saved: {name}",
            "x": list(found.generations),
            "y": list(values),
            "role": role,
            "hovertemplate": "generation %{x}: %{y}",
        }
        for name, values, role in bars
    ]
    chart = _chart("effort", traces, x="generation", y="evaluations")
    chart["layout"]["barmode"] = "stack"
    return chart


def cost(run: RunView) -> Chart:
    """The seconds that the retrainings of each generation took."""
    found = summaries.effort(run)
    trace = {
        "type": "bar",
        "name": "seconds",
        "x": list(found.generations),
        "y": [round(value, 2) for value in found.seconds],
        "role": "third",
        "hovertemplate": "generation %{x}: %{y:.1f} s of retraining<extra></extra>",
        "showlegend": False,
    }
    chart = _chart("cost", [trace], x="generation", y="seconds of retraining")
    chart["layout"]["yaxis"]["rangemode"] = "nonnegative"
    return chart


def ablation(runs: Sequence[RunView]) -> Chart:
    """The judge's verdict on the best of each scheme, over α."""
    judge, found = summaries.schemes(runs)
    traces = []
    for role, scheme, dash, symbol in (
        ("best", "geometric", "solid", "circle"),
        ("third", "arithmetic", "dash", "square"),
    ):
        chosen = [each for each in found if each.combine == scheme]
        if chosen:
            x = [each.alpha for each in chosen]
            line = _line(f"{scheme} mean", x, _percent([e.accuracy for e in chosen]), role)
            told = [f"{each.run}\n{100 * each.accuracy:.2f} % on {judge}" for each in chosen]
            look: Chart = {"line": {"dash": dash}, "marker": {"size": 9, "symbol": symbol}}
            traces.append(line | look | {"texts": told})
    return _chart("ablation", traces, x="α", y=f"accuracy on {judge} (%)")


def _line(name: str, x: list[Any], y: list[Any], role: str) -> Chart:
    return {"type": "scatter", "mode": "lines+markers", "name": name, "x": x, "y": y, "role": role}


def _chart(name: str, traces: list[Chart], *, x: str, y: str) -> Chart:
    layout: Chart = {
        "xaxis": {"title": {"text": x}},
        "yaxis": {"title": {"text": y}},
        "hovermode": "closest",
    }
    return {"name": name, "traces": traces, "layout": layout, "height": 460 if name == "progress" else 380}


def _told(each: Judged) -> str:
    one = each.individual
    return f"{one.expr}\n{one.expr.size} nodes, fitness {100 * each.fitness:.2f} %"


def _around(values: Iterable[float]) -> list[float]:
    """A range in which the dots at both ends, and what is written above them, are seen whole."""
    found = list(values)
    return [min(found) - 0.5, max(found) + 0.7]


def _percent(values: Sequence[float]) -> list[float]:
    return [round(100 * value, 3) for value in values]


def _rounded(value: float | None) -> float | None:
    """Short, and with digits to spare: the page rounds again, to what the run itself tells."""
    return None if value is None else round(value, 8)


def _heights(places: Sequence[Place]) -> dict[Place, float]:
    """The members of each generation spread evenly around the middle."""
    found: dict[Place, float] = {}
    for generation in {place[0] for place in places}:
        row = [place for place in places if place[0] == generation]
        for position, place in enumerate(row):
            found[place] = position - (len(row) - 1) / 2
    return found
