"""`evoprune runs`: the runs there are, or one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from evoprune.commands._parsing import Flag, plain, print_json
from evoprune.runs.folder import RUNS


def main(
    name: Annotated[str, tyro.conf.Positional, plain("[NAME]")] = "",
    /,
    runs: Path = RUNS,
    json: Flag = False,
) -> None:
    """List runs, how each stands and its best function; or show one with its hall of fame.

    Args:
        name: Of a run, or the path of its folder; none lists all.
        runs: The folder that runs are kept in.
        json: Print JSON: a list of runs, of one where a name is given.

    Examples:
        evoprune runs
        evoprune runs demo-1
        evoprune runs --json
    """
    from evoprune.evolution.summary import summary
    from evoprune.runs.folder import find, names

    found = [find(runs, name)] if name else [find(runs, each) for each in names(runs)]
    summaries = [summary(folder) for folder in found]
    if json:
        print_json([each.table() for each in summaries])
    elif name:
        print(summaries[0].text())
    elif summaries:
        width = max(len(each.name) for each in summaries)
        print("\n".join(each.line(width) for each in summaries))
    else:
        print(f"there are no runs in {runs.absolute()}; start one with `evoprune evolve --preset demo`")
