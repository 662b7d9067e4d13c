"""Writing a report: the page and the figures, into one folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evoprune.files import write
from evoprune.report import figures
from evoprune.report.page import page
from evoprune.report.reading import RunView
from evoprune.runs.files import refusals_said


@dataclass(frozen=True)
class Written:
    """What was written."""

    page: Path
    figures: tuple[Path, ...]


def report(runs: Sequence[RunView], folder: Path, *, ablation: bool = False) -> Written:
    """Write `report.html` and `figures/*.png` and `*.svg` to a folder; what is there is replaced."""
    text = page(runs, ablation=ablation)
    drawn = figures.of_runs(runs, ablation=ablation)
    paths: list[Path] = []
    with refusals_said(f"writing the report to {folder}"):
        (folder / "figures").mkdir(parents=True, exist_ok=True)
        write(folder / "report.html", text, sync=False)
        for name, figure in drawn.items():
            paths += figures.save(figure, folder / "figures" / name)
    return Written(folder / "report.html", tuple(paths))
