"""`evoprune score`: score the channels of a task's network by many functions at once."""

from __future__ import annotations

import sys
from pathlib import Path

from evoprune.commands._options import Which

BEST = 5  # how many channels of a site are named


def main(
    which: Which,
    functions: tuple[str, ...] = ("xi_star",),
    csv: Path | None = None,
    explain: bool = False,
    json: bool = False,
) -> None:
    """Score the channels of a task's network, in one pass over its images for all functions.

    The base network is trained first where it is not there yet.

    Args:
        functions: Names of the library, or texts of your own in quotes.
        csv: Write every score to this file, a row per function, site and channel.
        explain: Also print the plan: what is gathered, which steps follow, what needs a sample of images.
        json: Print every score as JSON instead of tables.
    """
    from evoprune.expression.library import resolve
    from evoprune.scoring.plan import describe, plan
    from evoprune.tasks.progress import TrainingProgress

    names = [resolve(function).name for function in functions]
    task = which.open()
    with TrainingProgress(f"{task.name}: base") as progress:
        task.base(progress)
    scores = task.scores(functions)
    if csv is not None:
        scores.to_csv(csv)
        print(f"{sum(1 for _ in scores.rows())} scores written to {csv}", file=sys.stderr)
    if json:
        import json as json_module

        table = {name: {site: score.tolist() for site, score in scores[name].items()} for name in scores}
        print(json_module.dumps({"images": scores.images, "scores": table, "modes": scores.modes}, indent=1))
        return
    if explain:
        sizes = [(s.name, s.channels, s.map_size[0] * s.map_size[1]) for s in task.surgeon.sites]
        print(describe(plan(names), sizes, len(task.data.classes)), end="\n\n")
    print(scores, end="\n\n")
    print(f"the {BEST} most important channels of each site, best first")
    width = max(map(len, names))
    for site in scores.sites:
        print(f"  {site}")
        for name in names:
            best = scores[name][site].argsort(descending=True, stable=True)[:BEST].tolist()
            note = "  (all score alike)" if site in scores.constant(name) else ""
            print(f"    {name:<{width}}  {' '.join(map(str, best))}{note}")
