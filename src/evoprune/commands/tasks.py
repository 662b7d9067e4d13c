"""`evoprune tasks`: the tasks by name, or one of them as TOML."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import tyro

from evoprune.commands._options import find_own_modules
from evoprune.commands._parsing import Flag, plain, print_json
from evoprune.commands._showing import table

if TYPE_CHECKING:
    from evoprune.tasks.task import Task


def main(
    task: Annotated[str, tyro.conf.Positional, plain("[TASK]")] = "",
    json: Flag = False,
) -> None:
    """List the tasks with network, data, cut, recipe and cost, or show one as TOML to start your own from.

    Args:
        task: A task by name or TOML file; none lists all.
        json: Print JSON: a list of tasks with all their settings and costs, of one where a task is given.

    Examples:
        evoprune tasks
        evoprune tasks digits
        evoprune tasks digits > mine.toml
    """
    from evoprune import config
    from evoprune.tasks.settings import settings, task_tables

    find_own_modules()
    if json:
        print_json([_facts(name) for name in ([task] if task else task_tables())])
        return
    if task:
        print(config.dump(settings(task)), end="")
        return
    header = ["task", "network", "data", "cut", "retraining", "FLOPs", "parameters", "after the cut"]
    rows = [_row(name) for name in task_tables()]
    print(table(header, rows))
    print(
        "\nFLOPs are multiply-accumulates for one image; after the cut: the shares of FLOPs\n"
        "and parameters left. `evoprune tasks TASK` shows a task with all its settings."
    )


def _costs(task: Task) -> tuple[tuple[int, int], tuple[int, int]]:
    """FLOPs and parameters, before and after the cut."""
    from evoprune.tasks.cutting import costs

    return costs(task.untrained(), task.example(), task.settings.cut)


def _facts(name: str) -> dict[str, object]:
    from evoprune import config
    from evoprune.tasks.settings import settings
    from evoprune.tasks.task import Task

    task = Task(settings(name))
    before, after = _costs(task)
    columns = ("macs", "parameters")
    return {
        **config.to_table(task.settings),
        "before": dict(zip(columns, before, strict=True)),
        "after": dict(zip(columns, after, strict=True)),
    }


def _row(name: str) -> list[str]:
    from evoprune.tasks.results import short
    from evoprune.tasks.task import named

    task = named(name)
    chosen = task.settings
    before, after = _costs(task)
    left = [f"{a / b:.1%}" for a, b in zip(after, before, strict=True)]
    return [
        name,
        chosen.network_name,
        chosen.data.name,
        chosen.cut.described(),
        chosen.recipe.described(),
        short(before[0]),
        short(before[1]),
        " / ".join(left),
    ]
