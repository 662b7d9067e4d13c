"""Summaries → the traces and layouts that plotly draws, as plain dicts; colours by name of a role."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evoprune.evolution.ledger import Place
from evoprune.report import summaries
from evoprune.report.reading import RunView

Chart = dict[str, Any]

NAMED_CURVES = 3
"""Of more runs than these the legend has each run once, and not each of its curves."""


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
    valid = [100 * each.fitness for run in runs for each in run.judged if not each.error]
    if valid and any(each.error for run in runs for each in run.judged):
        # Failed evaluations lie at 0, below the window at first, or all others would be a line.
        margin = max(1.0, 0.05 * (max(valid) - min(valid)))
        chart["layout"]["yaxis"]["range"] = [min(valid) - margin, max(valid) + margin]
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
        "texts": [str(each.individual.expr) for each in hall],
        "marker": {"size": 7},
        "role": "dot",
    }
    best = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "no smaller one is as fit",
        "x": [each.individual.expr.size for each in found],
        "y": _percent([each.fitness for each in found]),
        "texts": [str(each.individual.expr) for each in found],
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
    judged = run.ledger.judged
    dots = {
        "type": "scatter",
        "mode": "markers",
        "x": [one.generation for one in found.members],
        "y": [heights[one.place] for one in found.members],
        "texts": [
            f"{one.expr}\n{one.origin}, generation {one.generation}, number {one.index}"
            + (f", fitness {100 * judged[one.place].fitness:.2f} %" if one.place in judged else "")
            for one in found.members
        ],
        "marker": {"size": 11},
        "role": "best",
        "showlegend": False,
    }
    chart = _chart("ancestry", [lines, dots], x="generation", y="")
    chart["layout"]["yaxis"] |= {"visible": False}
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
    for role, scheme in (("best", "geometric"), ("top", "arithmetic")):
        chosen = [each for each in found if each.combine == scheme]
        if chosen:
            x = [each.alpha for each in chosen]
            line = _line(f"{scheme} mean", x, _percent([e.accuracy for e in chosen]), role)
            traces.append(line | {"texts": [each.run for each in chosen]})
    return _chart("ablation", traces, x="α", y=f"accuracy on {judge} (%)")


def _line(name: str, x: list[Any], y: list[Any], role: str) -> Chart:
    return {"type": "scatter", "mode": "lines+markers", "name": name, "x": x, "y": y, "role": role}


def _chart(name: str, traces: list[Chart], *, x: str, y: str) -> Chart:
    layout: Chart = {
        "xaxis": {"title": {"text": x}},
        "yaxis": {"title": {"text": y}},
        "hovermode": "closest",
    }
    return {"name": name, "traces": traces, "layout": layout}


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
