"""`evoprune plot`: accuracy against FLOPs, from comparisons."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from evoprune.commands._parsing import plain


def main(
    folders: Annotated[tuple[Path, ...], tyro.conf.Positional, plain("FOLDER [FOLDER …]")],
    /,
    output: Path = Path("compare"),
) -> None:
    """Draw what `evoprune compare` wrote: accuracy against FLOPs, a line per function, bars over the seeds.

    Compare the same functions at several targets (--flops 0.3 --output a, --flops 0.5 --output b, …), then
    give all folders.

    Args:
        folders: Folders with an items.csv each.
        output: The figure's path without its ending; PNG and SVG are written.

    Examples:
        evoprune compare digits --functions xi_star l1 --flops 0.3 --output a
        evoprune compare digits --functions xi_star l1 --flops 0.6 --output b
        evoprune plot a b --output figure
    """
    from evoprune.errors import ConfigError
    from evoprune.report.comparing import curves, figure
    from evoprune.report.figures import save

    if not folders:
        raise ConfigError("give at least one folder that `evoprune compare --output` wrote")
    found = curves(folders)
    drawn = figure(found)
    output.parent.mkdir(parents=True, exist_ok=True)
    paths = save(drawn, output)
    for name, points in found.of.items():
        told = ", ".join(f"{point.accuracy:.2%} at {point.flops:.0%}" for point in points)
        print(f"{name}: {told}")
    print(f"written: {', '.join(map(str, paths))}")
