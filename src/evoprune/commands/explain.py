"""`evoprune explain`: what a function is, what it reads, and how it behaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from evoprune.commands._parsing import Flag, plain, print_json
from evoprune.errors import ConfigError, ScoringError

if TYPE_CHECKING:
    from evoprune.expression.library import Function
    from evoprune.expression.tree import Expr
    from evoprune.scoring.invariance import Invariance
    from evoprune.scoring.known import Scored


def main(
    function: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FUNCTION")],
    /,
    task: Annotated[str, plain("TASK")] = "",
    statistics: Annotated[Path | None, plain("FOLDER")] = None,
    folder: Path = Path("runs/tasks"),
    json: Flag = False,
) -> None:
    """Explain a function: text, LaTeX, tree, what it reads, its invariances, and what it ranks alike with.

    Args:
        function: A name of the library, or the text of a function of your own in quotes.
        task: Correlate its scores with those of SOAP on this task's network, which is trained if need be.
        statistics: Correlate them on statistics that were saved, those that such need alone.
        folder: Where trained base networks are kept, in a folder for each task.
        json: Print JSON.

    Examples:
        evoprune explain xi_star
        evoprune explain "abs(sq(mean_g(F+)))" --task digits
        evoprune explain fdr --statistics folder
    """
    from evoprune.commands.functions import card
    from evoprune.expression.check import check_scalar
    from evoprune.expression.library import resolve

    if task and statistics is not None:
        raise ConfigError("give --task or --statistics, not both")
    found = resolve(function)
    if found.expr is not None:
        check_scalar(found.expr)
    correlated, where = None, ""
    if task:
        scores, where = _on_task(found, task, folder)
        correlated = correlations(found, scores, where)
    elif statistics is not None:
        scores, where = _on_statistics(found, statistics)
        correlated = correlations(found, scores, where)
    if json:
        print_json(_facts(found, correlated))
        return
    print(card(function))
    for part in (reading, behaviour, simplified):
        if told := part(found):
            print(f"\n{told}")
    print()
    if correlated is None:
        print("rank correlation with SOAP: give --task TASK, or --statistics FOLDER")
    else:
        print(table(correlated, where))


def _facts(function: Function, correlated: Mapping[str, Correlation | str] | None) -> dict[str, object]:
    """All that is told, as plain values."""
    from evoprune.commands.functions import describe
    from evoprune.expression.simplify import simplify
    from evoprune.scoring.plan import plan

    facts = describe(function.name)
    if function.expr is not None:
        planned = plan(function)
        tried = _tried(function.expr)
        facts |= {
            "reads": [str(need) for need in planned.needs],
            "sampled": planned.sampled[0][1] if planned.sampled else None,
            "invariances": {"reason": tried} if isinstance(tried, str) else [asdict(each) for each in tried],
            "simplified": str(simplify(function.expr)),
        }
    if correlated is not None:
        facts["correlations"] = {
            name: {"reason": each} if isinstance(each, str) else asdict(each)
            for name, each in correlated.items()
        }
    return facts


def reading(function: Function) -> str:
    """Which statistics the pass over the images gathers for it."""
    from evoprune.scoring.plan import plan

    if function.expr is None:
        return "reads: nothing, its scores are drawn from a seed and the name of the site"
    planned = plan(function)
    if planned.sampled:
        return f"reads: single images, of a sample: {planned.sampled[0][1]}"
    if not planned.reads_maps:
        return "reads: the layer's parameters alone, no images"
    if not planned.needs:
        return "reads: the numbers of images alone"
    lines = ["reads, gathered in one pass over all images:"]
    return "\n".join([*lines, *(f"  {need}" for need in planned.needs)])


def behaviour(function: Function) -> str:
    """What happens to the scores where the data changes; nothing to tell of a draw."""
    if function.expr is None:
        return ""
    found = _tried(function.expr)
    if isinstance(found, str):
        return f"invariances, not tried: {found}"
    width = max(len(each.change) for each in found)
    lines = ["invariances, tried on seeded random maps:"]
    return "\n".join([*lines, *(f"  {each.change:<{width}}  {each}" for each in found)])


def _tried(expr: Expr) -> tuple[Invariance, ...] | str:
    """The invariances, or why they cannot be tried: there are functions whose scores overflow there."""
    from evoprune.scoring.invariance import invariances

    try:
        return invariances(expr)
    except ScoringError as error:
        return str(error)


def simplified(function: Function) -> str:
    """A smaller text with the same scores, where there is one; nothing to tell of a draw."""
    from evoprune.expression.simplify import simplify

    if function.expr is None:
        return ""
    smaller = simplify(function.expr)
    if smaller == function.expr:
        return "simplified: it is as small as exact rewriting makes it"
    return (
        f"simplified, with the same scores: {smaller} ({smaller.size} nodes instead of {function.expr.size})"
    )


@dataclass(frozen=True)
class Correlation:
    """Spearman's rank correlation with another function, over the sites where neither is constant."""

    mean: float
    lowest: float
    highest: float
    sites: int


def correlations(
    function: Function, scores: dict[str, Scored | str], where: str
) -> dict[str, Correlation | str]:
    """The rank correlation with every other function, or why there is none."""
    import numpy as np

    from evoprune.scoring.invariance import spearman

    own = scores.pop(function.name)
    if isinstance(own, str):
        raise ConfigError(f"{function.name[:80]} cannot be scored {where}: {own}; give --task instead")
    found: dict[str, Correlation | str] = {}
    for name, other in scores.items():
        if isinstance(other, str):
            found[name] = other
            continue
        each = np.array([spearman(own[site], other[site]) for site in own])
        each = each[np.isfinite(each)]
        numbers = (float(each.mean()), float(each.min()), float(each.max())) if each.size else None
        found[name] = Correlation(*numbers, each.size) if numbers else "constant"
    return found


def table(correlated: Mapping[str, Correlation | str], where: str) -> str:
    """The correlations for people."""
    width = max(map(len, correlated))
    lines = [f"rank correlation with SOAP {where}: mean over the sites (lowest … highest)"]
    for name, each in correlated.items():
        told = (
            f"–      ({each})"
            if isinstance(each, str)
            else f"{each.mean:+.3f} ({each.lowest:+.3f} … {each.highest:+.3f})"
        )
        lines.append(f"  {name:<{width}}  {told}")
    return "\n".join(lines)


def _rivals(function: Function) -> list[Function]:
    from evoprune.expression.library import SOAP, functions

    return [function, *(functions[name] for name in SOAP if name != function.name)]


def _on_task(function: Function, name: str, folder: Path) -> tuple[dict[str, Scored | str], str]:
    from evoprune.tasks.progress import TrainingProgress
    from evoprune.tasks.settings import settings
    from evoprune.tasks.task import Task

    chosen = settings(name)
    task = Task(chosen, folder / chosen.name)
    with TrainingProgress(f"{task.name}: base") as progress:
        task.base(progress)
    scores = task.scores([str(each.name) for each in _rivals(function)])
    found: dict[str, Scored | str] = {
        each: {site: score.numpy() for site, score in scores[each].items()} for each in scores
    }
    return found, f"on {task.name}"


def _on_statistics(function: Function, folder: Path) -> tuple[dict[str, Scored | str], str]:
    from evoprune.scoring.known import known_scores
    from evoprune.scoring.statistics import Statistics

    statistics = Statistics.load(folder)
    return known_scores(_rivals(function), statistics), f"on the statistics in {folder}"
