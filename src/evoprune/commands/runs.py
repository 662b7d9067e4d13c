"""`evoprune runs`: the runs there are, or one of them."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import tyro

from evoprune.runs.folder import RUNS


def main(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = "",
    /,
    runs: Path = RUNS,
    json: bool = False,
) -> None:
    """List runs, how each stands and its best function; or show one with its hall of fame.

    Args:
        name: Of a run, or the path of its folder; none lists all.
        runs: The folder that runs are kept in.
        json: Print JSON.
    """
    from evoprune.evolution.summary import summary
    from evoprune.runs.folder import find, names

    found = [find(runs, name)] if name else [find(runs, each) for each in names(runs)]
    summaries = [summary(folder) for folder in found]
    if json:
        print(json_module.dumps([each.table() for each in summaries], indent=2))
    elif name:
        print(summaries[0].text())
    elif summaries:
        width = max(len(each.name) for each in summaries)
        print("\n".join(each.line(width) for each in summaries))
    else:
        print(f"there are no runs in {runs.absolute()}; start one with `evoprune evolve --preset demo`")
