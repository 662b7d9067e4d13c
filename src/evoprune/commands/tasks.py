"""`evoprune tasks`: the tasks by name, or one of them as TOML."""

from __future__ import annotations

from typing import Annotated

import tyro


def main(
    task: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[TASK]")] = "",
) -> None:
    """List the tasks with network, data, cut, recipe and cost, or show one as TOML to start your own from.

    Args:
        task: A task by name or TOML file; none lists all.
    """
    from evoprune import config
    from evoprune.tasks.settings import settings, task_tables

    if task:
        print(config.dump(settings(task)), end="")
        return
    from evoprune.tasks.results import aligned

    header = ["task", "network", "data", "cut", "retraining", "FLOPs", "parameters", "after the cut"]
    rows = [_row(name) for name in task_tables()]
    print(aligned(header, rows))
    print(
        "\nFLOPs are multiply-accumulates for one image; after the cut: the shares of FLOPs and parameters "
        "left.\n`evoprune tasks TASK` shows a task with all its settings, as TOML."
    )


def _row(name: str) -> list[str]:
    from evoprune.tasks.cutting import costs
    from evoprune.tasks.results import short
    from evoprune.tasks.task import named

    task = named(name)
    chosen = task.settings
    before, after = costs(task.untrained(), task.example(), chosen.cut)
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
