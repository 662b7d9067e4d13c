"""`evoprune report`: look at runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from evoprune.runs.folder import RUNS


def main(
    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN …]")],
    /,
    ablation: bool = False,
    output: Path | None = None,
    runs: Path = RUNS,
) -> None:
    """Write one self-contained page about a run, or about several laid over each other, and its figures.

    The page needs no network. A run that still goes on is shown as far as it is.

    Args:
        names: Of runs, or the paths of their folders.
        ablation: Also draw the figure of the combination schemes: what the judge says of each run's best.
        output: The folder to write to; unless given, report in the run's folder, or ./report-A-B.
        runs: The folder that runs are kept in.
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
    for run in found:
        best = run.ledger.best()
        told = "nothing is judged yet" if best is None else f"best {100 * best.fitness:.2f} %"
        print(f"{run.name}: {run.state}, {told}")
    print(f"report:   {written.page} ({written.page.stat().st_size / 1e6:.1f} MB)")
    if written.figures:
        print(f"figures:  {len(written.figures)} in {written.figures[0].parent}")
