"""`evoprune resume`: go on with a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from evoprune.commands._options import find_own_modules
from evoprune.commands._parsing import Flag, plain
from evoprune.commands.evolve import carry_on, executed
from evoprune.runs.folder import RUNS


def main(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")],
    /,
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, plain("KEY=VALUE")] = (),
    executor: Annotated[Literal["inline", "local", "slurm"] | None, plain()] = None,
    workers: Annotated[int | None, plain("COUNT")] = None,
    runs: Path = RUNS,
    json: Flag = False,
) -> None:
    """Go on with a run that was killed, interrupted, or stopped by its budget.

    Nothing that was recorded is evaluated again, and the result is that of a run never stopped.

    Args:
        name: Of the run, or the path of its folder.
        set: Change what no finished evaluation depends on, like budget.seconds=3600; may be given many times.
        executor: Where evaluations run from now on.
        workers: How many worker processes from now on.
        runs: The folder that runs are kept in.
        json: Print what came of it as JSON.

    Examples:
        evoprune resume demo-1
        evoprune resume demo-1 --set population.generations=50
    """
    from evoprune.evolution.starting import resume
    from evoprune.evolution.watching import watch

    find_own_modules()
    carry_on(resume(name, overrides=[*set, *executed(executor, workers)], runs=runs, watch=watch()), json)
