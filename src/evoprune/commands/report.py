"""`evoprune report`: look at runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from evoprune.commands._parsing import Flag, plain, print_json
from evoprune.runs.folder import RUNS


def main(
    names: Annotated[tuple[str, ...], tyro.conf.Positional, plain("RUN [RUN …]")],
    /,
    ablation: Flag = False,
    output: Annotated[Path | None, plain("FOLDER")] = None,
    runs: Path = RUNS,
    json: Flag = False,
) -> None:
    """Write one self-contained page about a run, or about several laid over each other, and its figures.

    The page needs no network. A run that still goes on is shown as far as it is.

    Args:
        names: Of runs, or the paths of their folders.
        ablation: Also draw the figure of the combination schemes: what the judge says of each run's best.
        output: The folder to write to; unless given, report in the run's folder, or ./report-A-B.
        runs: The folder that runs are kept in.
        json: Print how the runs stand and what was written as JSON.

    Examples:
        evoprune report demo-1
        evoprune report soap random --output both
    """
    from evoprune.report.reading import views
    from evoprune.report.writing import report

    found = views(runs, names)
    folder = output
    if folder is None and len(found) == 1:
        folder = found[0].path / "report"
    elif folder is None:
        folder = Path("-".join(["report", *(run.name for run in found)])[:120])
    written = report(found, folder, ablation=ablation)
    if json:
        stand = [
            {"name": run.name, "state": run.state, "fitness": None if best is None else best.fitness}
            for run in found
            for best in [run.ledger.best()]
        ]
        print_json({"runs": stand, "page": written.page, "figures": written.figures})
        return
    for run in found:
        best = run.ledger.best()
        told = "nothing is judged yet" if best is None else f"best {100 * best.fitness:.2f} %"
        print(f"{run.name}: {run.state}, {told}")
    print(f"report:   {written.page} ({written.page.stat().st_size / 1e6:.1f} MB)")
    if written.figures:
        print(f"figures:  {len(written.figures)} in {written.figures[0].parent}")
