"""`evoprune explain`: what a function is, what it reads, and how it behaves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from evoprune.errors import ConfigError

if TYPE_CHECKING:
    from evoprune.expression.library import Function
    from evoprune.scoring.known import Scored


def main(
    function: Annotated[str, tyro.conf.Positional],
    /,
    task: str = "",
    statistics: Path | None = None,
    folder: Path = Path("runs/tasks"),
) -> None:
    """Explain a function: text, LaTeX, tree, what it reads, its invariances, and what it ranks alike with.

    Args:
        function: A name of the library, or the text of a function of your own in quotes.
        task: Correlate its scores with those of SOAP on this task's network, which is trained if need be.
        statistics: Correlate them on statistics that were saved, those that such need alone.
        folder: Where trained base networks are kept, in a folder for each task.
    """
    from evoprune.commands.functions import card
    from evoprune.expression.check import check_scalar
    from evoprune.expression.library import resolve

    if task and statistics is not None:
        raise ConfigError("give --task or --statistics, not both")
    found = resolve(function)
    if found.expr is None:
        raise ConfigError(f"{found.name!r} draws its scores: there is no expression to explain")
    check_scalar(found.expr)
    print(card(function))
    print()
    print(reading(found))
    print()
    print(behaviour(found))
    print()
    print(simplified(found))
    print()
    if task:
        print(correlations(found, *_on_task(found, task, folder)))
    elif statistics is not None:
        print(correlations(found, *_on_statistics(found, statistics)))
    else:
        print("rank correlation with SOAP: give --task TASK, or --statistics FOLDER of Statistics.save")


def reading(function: Function) -> str:
    """Which statistics the pass over the images gathers for it."""
    from evoprune.scoring.plan import plan

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
    """What happens to the scores where the data changes."""
    from evoprune.scoring.invariance import invariances

    assert function.expr is not None
    found = invariances(function.expr)
    width = max(len(each.change) for each in found)
    lines = ["invariances, tried on seeded random maps:"]
    return "\n".join([*lines, *(f"  {each.change:<{width}}  {each}" for each in found)])


def simplified(function: Function) -> str:
    """A smaller text with the same scores, where there is one."""
    from evoprune.expression.simplify import simplify

    assert function.expr is not None
    smaller = simplify(function.expr)
    if smaller == function.expr:
        return "simplified: it is as small as exact rewriting makes it"
    return (
        f"simplified, with the same scores: {smaller} ({smaller.size} nodes instead of {function.expr.size})"
    )


def correlations(function: Function, scores: dict[str, Scored | str], where: str) -> str:
    """Spearman's rank correlation with every other function, as the mean over the sites and their range."""
    import numpy as np

    from evoprune.scoring.invariance import spearman

    own = scores.pop(function.name)
    if isinstance(own, str):
        raise ConfigError(f"{function.name[:80]} cannot be scored {where}: {own}; give --task instead")
    width = max(map(len, scores))
    lines = [f"rank correlation with SOAP {where}: mean over {len(own)} sites (lowest … highest)"]
    for name, other in scores.items():
        if isinstance(other, str):
            lines.append(f"  {name:<{width}}  –      ({other})")
            continue
        each = np.array([spearman(own[site], other[site]) for site in own])
        each = each[np.isfinite(each)]
        told = f"{each.mean():+.3f} ({each.min():+.3f} … {each.max():+.3f})" if each.size else "–  (constant)"
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
