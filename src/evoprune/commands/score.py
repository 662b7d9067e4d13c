"""`evoprune score`: score the channels of a task's network by many functions at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import tyro

from evoprune.commands._options import Which
from evoprune.commands._parsing import Flag, plain, print_json
from evoprune.errors import ConfigError

BEST = 5  # how many channels of a site are named


def main(
    task: Which,
    functions: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FUNCTION [FUNCTION …]")] = ("xi_star",),
    csv: Annotated[Path | None, plain("FILE")] = None,
    explain: Flag = False,
    json: Flag = False,
) -> None:
    """Score the channels of a task's network, in one pass over its images for all functions.

    The base network is trained first where it is not there yet.

    Args:
        functions: Names of the library, or texts of your own in quotes.
        csv: Write every score to this file, a row per function, site and channel.
        explain: Also print the plan: what is gathered, which steps follow, what needs a sample of images.
        json: Print every score as JSON instead of tables.

    Examples:
        evoprune score digits
        evoprune score digits --functions xi_star l1 "var_g(F+)" --csv scores.csv
        evoprune score resnet20-cifar10 --functions xi_star di --explain
    """
    from evoprune.scoring.plan import describe, plan
    from evoprune.tasks.progress import TrainingProgress

    if not functions:
        raise ConfigError("--functions needs at least one function")
    planned = plan(functions)  # what is wrong with a function is told before a network is trained
    names = [function.name for function in planned.functions]
    chosen = task.open()
    with TrainingProgress(f"{chosen.name}: base") as progress:
        chosen.base(progress)
    scores = chosen.scores(functions)
    if csv is not None:
        scores.to_csv(csv)
        print(f"{sum(1 for _ in scores.rows())} scores written to {csv}", file=sys.stderr)
    if json:
        table = {name: {site: score.tolist() for site, score in scores[name].items()} for name in scores}
        print_json({"images": scores.images, "scores": table, "modes": scores.modes})
        return
    if explain:
        sizes = [(s.name, s.channels, s.map_size[0] * s.map_size[1]) for s in chosen.surgeon.sites]
        print(describe(planned, sizes, len(chosen.data.classes)), end="\n\n")
    print(scores, end="\n\n")
    print(f"the {BEST} most important channels of each site, best first")
    width = max(map(len, names))
    for site in scores.sites:
        print(f"  {site}")
        for name in names:
            best = scores[name][site].argsort(descending=True, stable=True)[:BEST].tolist()
            note = "  (all score alike)" if site in scores.constant(name) else ""
            print(f"    {name:<{width}}  {' '.join(map(str, best))}{note}")
