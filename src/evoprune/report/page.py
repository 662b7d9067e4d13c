"""The report as one HTML file: nothing in it is loaded from anywhere else.

What comes from a run (names, notes, formulas, errors) is escaped: in the markup as text, in the embedded
JSON so that no tag can begin there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from evoprune import __version__
from evoprune.errors import MissingExtraError
from evoprune.evolution.hall_of_fame import percent
from evoprune.evolution.ledger import Judged
from evoprune.evolution.watching import duration
from evoprune.expression.library import SOAP
from evoprune.expression.tree import Expr
from evoprune.report import charts, summaries
from evoprune.report.mathml import mathml
from evoprune.report.reading import RunView
from evoprune.runs.journal import ENVIRONMENT, SETTINGS

SHOWN_ERRORS = 20
"""How many different failures are listed."""

FEW = 10
"""How many ancestors are listed without being asked for."""

NAMED = 3
"""How many runs the title names; more than these are listed in a table, and each is folded up."""

STATES = {"running": "still running", "ended": "ended", "stopped": "stopped before its end"}


def page(runs: Sequence[RunView], *, ablation: bool = False) -> str:
    """The report of one or several runs."""
    title = ", ".join(run.name for run in runs[:NAMED])
    if len(runs) > NAMED:
        title += f" and {len(runs) - NAMED} other runs"
    found: list[charts.Chart] = [charts.progress(runs)]
    sections = [_progress_section(runs)]
    if ablation:
        found.append(charts.ablation(runs))
        sections.append(
            _section("How accuracies are combined", ABLATION + _place("ablation") + _unjudged(runs))
        )
    for number, run in enumerate(runs):
        best = run.ledger.best()
        if best is None:
            continue
        for chart in (
            charts.by_size(run),
            charts.ancestry(run, best.individual.place),
            charts.usage(run),
            charts.diversity(run),
            charts.effort(run),
            charts.cost(run),
        ):
            found.append(chart | {"name": f"{chart['name']}-{number}"})
    for number, run in enumerate(runs):
        sections.append(_run_section(run, number, shown=len(runs)))
    data = {"points": charts.points(runs), "charts": found}
    parts = {
        "title": escape(title),
        "style": _asset("report.css"),
        "plotly": plotly_script(),
        "script": _asset("report.js"),
        "data": embedded(data),
        "tiles": _overview(runs),
        "sections": "".join(sections),
        "version": escape(__version__),
    }
    # One pass, so that nothing that is put in is looked at for places.
    return re.sub(r"\{(\w+)\}", lambda place: parts[place[1]], _asset("report.html"))


ABLATION = (
    '<p class="about">The best function of each scheme on the task that judges; α weights the first task. '
    "As in the paper's figure of the combination schemes.</p>"
)


def _unjudged(runs: Sequence[RunView]) -> str:
    """The runs that are not in the figure of the combination schemes."""
    judge, _ = summaries.schemes(runs)
    missing = [run.name for run in runs if summaries.verdicts(run).get(judge) is None]
    told = f"Not there, as they are not judged on {judge}: {', '.join(missing)}."
    return f'<p class="about">{escape(told)}</p>' if missing else ""


def embedded(data: Any) -> str:
    """JSON that can stand in a `<script>` element: no `<`, so that nothing in it ends or begins a tag."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@cache
def plotly_script() -> str:
    """Plotly's own JavaScript, as its package ships it."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise MissingExtraError("a report", "report") from None
    return str(get_plotlyjs())


def _asset(name: str) -> str:
    return (files("evoprune.report") / "assets" / name).read_text("utf-8")


def _section(title: str, body: str, *, about: str = "") -> str:
    told = f'<p class="about">{about}</p>' if about else ""
    return f"<section><h2>{title}</h2>{told}{body}</section>"


def _place(chart: str, label: str = "") -> str:
    """Where a chart is drawn."""
    return f'<div class="chart" id="chart-{chart}" role="img" aria-label="{escape(label or chart)}"></div>'


def _overview(runs: Sequence[RunView]) -> str:
    """How the runs stand."""
    if len(runs) <= NAMED:
        return "".join(_tiles(run, alone=len(runs) == 1) for run in runs)
    rows = [[escape(run.name), STATES[run.state], *map(escape, _numbers(run).values())] for run in runs]
    header = ["run", "", *map(escape, _numbers(runs[0]))]
    return f'<div class="run">{_table(header, rows, numbers=range(2, len(header)))}</div>'


def _numbers(run: RunView) -> dict[str, str]:
    """How a run stands, in numbers."""
    best, cost = run.ledger.best(), summaries.effort(run)
    saved = sum(sum(counts) for counts in cost.saved.values())
    return {
        "best fitness": "–" if best is None else f"{percent(best.fitness)} %",
        "generations": f"{len(run.ledger.generations)} of {run.settings.population.generations}",
        "functions judged": f"{len(run.judged):,}",
        "retrainings": f"{len(run.ledger.outcomes):,}",
        "saved": f"{saved:,}",
        "time": duration(cost.elapsed),
    }


def _tiles(run: RunView, *, alone: bool) -> str:
    """How a run stands, with its name and what it is about."""
    name = "" if alone else f'<span class="run-name">{escape(run.name)}</span>'
    about = f'<p class="about">{escape(run.settings.about)}</p>' if run.settings.about else ""
    ended = f": {escape(run.ledger.ended)}" if run.state == "ended" and run.ledger.ended else ""
    cells = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in _numbers(run).items())
    return (
        f'<div class="run">{name}<span class="state {run.state}">{STATES[run.state]}{ended}</span>'
        f'{about}<dl class="tiles">{cells}</dl></div>'
    )


def _progress_section(runs: Sequence[RunView]) -> str:
    if not any(run.judged for run in runs):
        return _section("Progress", "<p>No function has been judged yet.</p>")
    picker = "".join(
        f'<option value="{number}">{escape(run.name)}</option>' for number, run in enumerate(runs)
    )
    which = "" if len(runs) == 1 else f'<select id="run"><option value="">all runs</option>{picker}</select>'
    controls = (
        '<div class="controls"><input id="filter" type="search" placeholder="filter: var_g(F-) rbf …" '
        'aria-label="filter functions">'
        f'<select id="origin" aria-label="origin"><option value="">all origins</option></select>{which}'
        '<output id="count"></output></div>'
    )
    table = (
        '<div class="scroll list"><table id="functions"><thead></thead><tbody></tbody></table></div>'
        '<p class="about" id="more"></p>'
    )
    return _section(
        "Progress",
        _place("progress", "fitness of every evaluation over generations") + controls + table + DETAIL,
        about="Each dot is an evaluation. Click one, or a row of the table, to see where it comes from."
        + ("" if len(runs) == 1 else " Solid: the best so far; dotted: what the best quarter reaches.")
        + _out_of_sight(runs),
    )


def _out_of_sight(runs: Sequence[RunView]) -> str:
    """What the chart does not show at first."""
    if summaries.window(runs) is None:
        return ""
    failed = sum(bool(each.error) for run in runs for each in run.judged)
    return f" Below the edge, at 0 %: {_count(failed, 'failed evaluation')}; a double click shows all."


DETAIL = '<aside id="detail" hidden></aside>'


def _run_section(run: RunView, number: int, *, shown: int) -> str:
    """Everything about one run below the progress; of many runs, folded up."""
    best = run.ledger.best()
    parts = [] if best is None else _judged_sections(run, best, number)
    parts.append(_troubles(run))
    parts.append(_section("Configuration and environment", _environment(run)))
    body = "".join(parts)
    if shown == 1:
        return body
    if shown <= NAMED:
        return f'<h1 class="run-heading">{escape(run.name)}</h1>{body}'
    return f'<details class="whole"><summary>{escape(run.name)}</summary>{body}</details>'


def _judged_sections(run: RunView, best: Judged, number: int) -> list[str]:
    cost = summaries.effort(run)
    saved = sum(sum(counts) for counts in cost.saved.values())
    every = saved + sum(cost.retrained)
    share = f", {100 * saved / every:.0f} % of {every:,} evaluations" if every else ""
    return [
        _section("The best function", formula(best.individual.expr) + _accuracies(run, best)),
        _section(
            "Beside SOAP",
            _soap(run),
            about="The best function and the hand-made ones, on the validation images of the same tasks.",
        ),
        _section(
            "Size and fitness",
            _place(f"size-{number}", "fitness over size") + _front(run),
            about="The fittest function of every size; the line joins those that no smaller one equals.",
        ),
        _section(
            "Ancestry of the best",
            _place(f"ancestry-{number}", "ancestors of the best function") + _ancestors(run, best),
            about="Its ancestors, with lines from parents to children; of few, with their fitness (%).",
        ),
        _section(
            "Operands and operators in use",
            _place(f"usage-{number}", "use of names by generation"),
            about="The share of each generation's functions in which a name occurs.",
        ),
        _section(
            "Diversity",
            _place(f"diversity-{number}", "diversity by generation"),
            about="Distinct functions, and distinct cuts: what is kept on all tasks together.",
        ),
        _section(
            "Saved evaluations and cost",
            f'<div class="pair">{_place(f"effort-{number}", "retrainings by generation")}'
            f"{_place(f'cost-{number}', 'seconds by generation')}</div>",
            about=f"{_count(saved, 'retraining')} saved{share}; {duration(cost.elapsed)} in all, "
            f"{_count(cost.finale, 'retraining')} for the comparison at the end.",
        ),
    ]


def formula(expr: Expr) -> str:
    """A function as formula, LaTeX, text and tree, each of the last three with a button to copy it."""
    forms = (("text", str(expr)), ("LaTeX", expr.latex()), ("tree", expr.tree()))
    blocks = "".join(
        f'<div class="form"><div class="form-head"><span>{name}</span>'
        f'<button class="copy" type="button">copy</button></div><pre>{escape(text)}</pre></div>'
        for name, text in forms
    )
    return f'<div class="formula scroll">{mathml(expr)}</div><div class="forms">{blocks}</div>'


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()) -> str:
    """A table of cells that are markup already; `numbers` are the columns set to the right."""

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=number' if i in numbers else ''}>{cell}</{tag}>" for i, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = cells("th", header)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _accuracies(run: RunView, best: Judged) -> str:
    one = best.individual
    rows = [(task, best.accuracies.get(task), "fitness") for task in run.tasks]
    rows += [(task, accuracy, "judge") for task, accuracy in summaries.verdicts(run).items()]
    bases = run.ledger.bases
    table = _table(
        ["task", "part", "unpruned (%)", "pruned (%)"],
        [
            [escape(task), part, "–" if bases.get(task) is None else percent(bases[task]), percent(accuracy)]
            for task, accuracy, part in rows
        ],
        numbers=(2, 3),
    )
    return (
        f"<p>Fitness {percent(best.fitness)} %, {one.expr.size} nodes, depth {one.expr.depth}; "
        f"first found in generation {one.generation}, origin: {escape(one.origin)}.</p>{table}"
    )


def _soap(run: RunView) -> str:
    found = summaries.soap_table(run)
    assert found is not None
    rows = [
        [
            escape(row.name),
            percent(row.fitness),
            *(percent(row.accuracies.get(task)) for task in found.tasks),
            _code(row.function),
        ]
        for row in found.rows
    ]
    header = ["function", "fitness (%)", *(f"{escape(task)} (%)" for task in found.tasks), "text"]
    missing = sorted(set(SOAP) - {row.name for row in found.rows})
    told = ""
    if missing:
        why = "the run compares with all of them at its end"
        told = f'<p class="about">Not there: {", ".join(missing)}; {why}.</p>'
    return _table(header, rows, numbers=range(1, 2 + len(found.tasks))) + told


def _front(run: RunView) -> str:
    rows = [
        [str(each.individual.expr.size), percent(each.fitness), _code(str(each.individual.expr))]
        for each in summaries.front(run)
    ]
    return _table(["nodes", "fitness (%)", "function"], rows, numbers=(0, 1))


def _ancestors(run: RunView, best: Judged) -> str:
    found = summaries.ancestry(run, best.individual.place)
    parents: dict[tuple[int, int], list[str]] = {}
    for parent, child in found.edges:
        parents.setdefault(child, []).append(f"{parent[0]}.{parent[1]}")
    judged = run.ledger.judged
    rows = [
        [
            f"{one.generation}.{one.index}",
            escape(one.origin),
            ", ".join(parents.get(one.place, [])) or "–",
            percent(judged[one.place].fitness) if one.place in judged else "–",
            _code(str(one.expr)),
        ]
        for one in reversed(found.members)
    ]
    told = _count(len(rows), "function")
    if not found.complete:
        told = f"the nearest {told}"
    header = ["generation.number", "origin", "parents", "fitness (%)", "function"]
    opened = " open" if len(rows) <= FEW else ""
    return f"<details{opened}><summary>{told}</summary>{_table(header, rows, numbers=(3,))}</details>"


def _troubles(run: RunView) -> str:
    """Failures, notes, and the log of a run that has not ended; nothing where there is nothing to tell."""
    parts = []
    errors: dict[str, int] = {}
    for each in run.judged:
        if each.error:
            errors[each.error] = errors.get(each.error, 0) + 1
    if errors:
        listed = sorted(errors.items(), key=lambda item: -item[1])
        rows = [[str(count), _code(error)] for error, count in listed[:SHOWN_ERRORS]]
        parts.append(_table(["functions", "failure (their fitness is 0)"], rows, numbers=(0,)))
        if len(listed) > SHOWN_ERRORS:
            parts.append(f'<p class="about">and {len(listed) - SHOWN_ERRORS} other failures</p>')
    if run.notes:
        parts.append("<ul>" + "".join(f"<li>{escape(note)}</li>" for note in run.notes) + "</ul>")
    if run.torn and run.state != "running":  # or they are just being written
        parts.append(f"<p>The last {run.torn} bytes of the journal are torn off; they are left out.</p>")
    if run.log:
        parts.append(f"<h3>The end of its log</h3><pre>{escape(chr(10).join(run.log))}</pre>")
    return _section("Failures and interruptions", "".join(parts)) if parts else ""


def _environment(run: RunView) -> str:
    skipped = {"event", "generation", "index", SETTINGS, ENVIRONMENT}  # the configuration is shown below
    called = {"at": "begun"}
    rows = [
        [
            escape(called.get(key, key)),
            escape(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)),
        ]
        for key, value in {**run.about, **run.about.get(ENVIRONMENT, {})}.items()
        if key not in skipped
    ]
    rows.append(["folder", escape(str(run.path))])
    return (
        _table(["", ""], rows)
        + f"<details><summary>config.toml</summary><pre>{escape(run.config)}</pre></details>"
    )
