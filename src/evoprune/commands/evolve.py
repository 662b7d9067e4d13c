"""`evoprune evolve`: breed pruning functions."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from evoprune.commands._options import find_own_modules
from evoprune.commands._parsing import Flag, plain, print_json
from evoprune.commands._showing import listing
from evoprune.errors import RunError
from evoprune.runs.folder import RUNS

if TYPE_CHECKING:
    from evoprune.evolution.search import Run
    from evoprune.expression.tree import Expr


STOPPING = b"stopping as soon as that can be done cleanly; once more stops at once"


def main(
    config: Annotated[str, tyro.conf.Positional, plain("[CONFIG]")] = "",
    /,
    preset: Annotated[str | None, plain("PRESET")] = None,
    name: Annotated[str | None, plain("NAME")] = None,
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, plain("KEY=VALUE")] = (),
    executor: Annotated[Literal["inline", "local", "slurm"] | None, plain()] = None,
    workers: Annotated[int | None, plain("COUNT")] = None,
    runs: Path = RUNS,
    list: Flag = False,
    json: Flag = False,
) -> None:
    """Evolve pruning functions: breed, prune, retrain, select; the best is a line of text.

    Ctrl-C stops cleanly, and `evoprune resume NAME` goes on.

    Args:
        config: A TOML file; with --preset it says what differs from the preset.
        preset: Settings that come with the package; --list names them.
        name: Of the run, whose folder is runs/NAME; without it, one is made up.
        set: Change one setting, like population.size=20; may be given many times.
        executor: Where evaluations run: in this process, in local worker processes, or as jobs of a cluster.
        workers: How many worker processes.
        runs: The folder that runs are kept in.
        list: List the presets, and do nothing else.
        json: Print what came of it as JSON.

    Examples:
        evoprune evolve --preset demo
        evoprune evolve --preset demo --name mine --set population.generations=10 --set seed=1
        evoprune evolve mine.toml --workers 4
        evoprune evolve --list
    """
    from evoprune.errors import ConfigError
    from evoprune.evolution.settings import presets
    from evoprune.evolution.starting import evolve
    from evoprune.evolution.watching import watch

    if list and json:
        print_json(presets())
        return
    if list:
        print(listing(presets()))
        return
    if not config and preset is None:
        raise ConfigError(f"give a configuration file, or --preset with one of {', '.join(presets())}")
    find_own_modules()
    overrides = [*set, *executed(executor, workers)]
    run = evolve(config or None, preset=preset, name=name, overrides=overrides, runs=runs, watch=watch())
    carry_on(run, json)


def executed(executor: str | None, workers: int | None) -> Iterator[str]:
    """The assignments that the options stand for."""
    if executor is not None:
        yield f"run.executor={executor}"
    if workers is not None:
        yield f"run.workers={workers}"


def carry_on(run: Run, json: bool = False) -> None:
    """Work until the run ends or is stopped, and say what came of it."""
    print(f"run {run.folder.name} in {run.folder.path}", file=sys.stderr)
    try:
        with run, interruptible(run):
            for _ in run:
                pass
    except RunError as error:
        raise RunError(f"{error}\nwhat is recorded is kept; to go on: {resuming(run)}") from error
    except KeyboardInterrupt:  # the second one
        print(f"next:  {resuming(run)}", file=sys.stderr)
        raise
    if json:
        from evoprune.evolution.summary import summary

        print_json(summary(run.folder).table() | {"ended": run.ended})
    else:
        print(ending(run))
    if run.interrupted:
        raise KeyboardInterrupt


@contextmanager
def interruptible(run: Run) -> Iterator[None]:
    """The first Ctrl-C (or a polite kill) stops the run at the next opportunity, a second one at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(number, before[number])
        run.interrupt()
        # No print: the signal may have come in the middle of one. On a terminal it takes the last line of the
        # picture, which is drawn anew from where the cursor is.
        os.write(2, b"\r\x1b[2K" + STOPPING if os.isatty(2) else STOPPING + b"\n")

    before: dict[int, Any] = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ending(run: Run) -> str:
    """What came of a run, and what to do next."""
    hall = run.hall_of_fame()
    path = run.folder.path
    lines = ["", hall.text(run.tasks).rstrip(), ""] if hall.fittest else []
    if run.comparison is not None:
        lines += [
            "The best beside SOAP, on the validation images of the same tasks",
            run.comparison.text(),
            "",
        ]
    lines.append(f"run:   {path} ({run.ended})")
    if run.comparison is None:
        lines.append(f"next:  {resuming(run)}")
    else:
        best = hall.fittest[0].individual.expr
        lines.append(f"best:  {best}")
        lines.append(f"next:  {next_command(run, best)}")
    return "\n".join(lines)


def next_command(run: Run, best: Expr) -> str:
    """What to try with the best function: prune with it where the package knows the task."""
    known = [choice.name for choice in run.settings.tasks if not choice.factory]
    return (
        f"evoprune prune {known[-1]} --function '{best}' --retrain"
        if known
        else f"evoprune functions '{best}'"
    )


def resuming(run: Run) -> str:
    """The command that goes on with a run."""
    words = ["evoprune", "resume", run.folder.name]
    if run.setting:
        words += ["--set", run.setting]
    if run.folder.path.parent != RUNS:
        words += ["--runs", str(run.folder.path.parent)]
    return shlex.join(words)
