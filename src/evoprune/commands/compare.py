"""`evoprune compare`: functions against each other on one task."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import tyro

from evoprune.commands._options import CutOptions, Which
from evoprune.commands._parsing import Flag, plain, print_json
from evoprune.errors import ConfigError


def main(
    task: Which,
    cut: CutOptions,
    functions: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FUNCTION [FUNCTION …]")] = (
        "xi_star",
        "l1",
        "fpgm",
    ),
    seeds: int = 3,
    on: Literal["test", "validation"] = "test",
    output: Annotated[Path | None, plain("FOLDER")] = None,
    json: Flag = False,
) -> None:
    """Compare pruning functions: the same shapes and the same recipe for all, paired by seed.

    The first function is the one that the others are compared with; mean_activation and random are always
    among them. What is done is kept: a comparison that was stopped goes on where it was.

    Args:
        functions: Names of the library, texts of your own in quotes, or tp_… of Torch-Pruning.
        seeds: How many seeds each function is retrained with.
        on: The images that judge: test for a final comparison, validation while you still choose.
        output: The folder for the table and the CSV files; in the task's folder unless given.
        json: Print the table as JSON.

    Examples:
        evoprune compare digits --functions xi_star l1 tp_taylor
        evoprune compare shapes --functions xi_star "var_g(F+)" --flops 0.5 --seeds 5 --output half
    """
    from rich.console import Console

    from evoprune.tasks.compare import compare
    from evoprune.tasks.importances import check_method
    from evoprune.tasks.progress import TrainingProgress
    from evoprune.tasks.store import write_bytes

    if seeds < 1:
        raise ConfigError(f"--seeds must be 1 or more, got {seeds}")
    if not functions:
        raise ConfigError("--functions needs at least one function")
    for function in functions:
        check_method(function)
    chosen = task.open(cut=cut)
    chosen.check()
    with TrainingProgress(f"{chosen.name}: base") as progress:
        chosen.base(progress)
    console = Console(stderr=True, soft_wrap=True)
    result = compare(
        chosen,
        functions,
        range(seeds),
        on=on,
        watch=lambda title: TrainingProgress(title, console=console, brief=True),
    )
    folder = output if output is not None else task.folder / chosen.name / "compare"
    for name, text in (
        ("summary.csv", result.csv()),
        ("items.csv", result.items_csv()),
        ("table.txt", f"{result}\n"),
    ):
        write_bytes(folder / name, text.encode())
    if json:
        facts = {"task": result.task, "on": result.on, "seeds": result.seeds, "reference": result.reference}
        print_json(facts | {"rows": [asdict(row) for row in result.rows], "output": folder})
        return
    print(result)
    print(f"\nwritten to {folder}: summary.csv, items.csv, table.txt")
