"""The command line: find the command, run it, print errors as people read them.

Each command is a module under `evoprune.commands` with a `main`, whose parameters are its options. They are
listed here by name only, so that `evoprune --help` imports neither tyro nor torch.

Results go to standard output; progress, notices and errors to standard error.
"""

from __future__ import annotations

import difflib
import io
import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from evoprune import __version__
from evoprune.errors import ConfigError, EvopruneError, ExpressionError, MissingOperandError, TargetError

if TYPE_CHECKING:
    from evoprune.commands._parsing import Voice

# purpose → command → (module under evoprune.commands, what it does in a few words)
COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Evolve functions": {
        "evolve": ("evolve", "breed pruning functions by a preset or a configuration"),
        "resume": ("resume", "go on with a run that was killed, interrupted or stopped"),
        "runs": ("runs", "list the runs and their best functions, or show one"),
        "report": ("report", "a page about runs: progress, best function, ancestry, cost"),
    },
    "Know a function": {
        "functions": ("functions", "list the functions of the library or of a run, or show one"),
        "explain": ("explain", "what a function reads, its invariances, what it agrees with"),
        "select": ("select", "select features of images, and draw which ones are kept"),
    },
    "Prune a network": {
        "tasks": ("tasks", "list the tasks: network, data, cut, recipe, cost"),
        "train": ("train", "train the base network of a task and keep it"),
        "score": ("score", "score and rank channels, in one pass for many functions"),
        "prune": ("prune", "score, cut and retrain; the paper's table row"),
        "compare": ("compare", "compare pruning functions, paired by seed"),
        "plot": ("plot", "draw comparisons: accuracy against FLOPs"),
    },
}

OK, FAILED, USAGE, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141

# What was asked for cannot be: wrong usage. All else is a failure of what could have been.
WRONG_USAGE = (ConfigError, ExpressionError, TargetError, MissingOperandError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 failed, 2 wrong usage."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # where lines of trees cannot be written, anything will do
    try:
        code = _run(given)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads the output has enough of it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return code


def _run(given: Sequence[str]) -> int:
    known = {name: home for group in COMMANDS.values() for name, home in group.items()}
    if given and given[0] == "help":
        given = [*given[1:2], "--help"]
    if not given or given[0] in ("-h", "--help"):
        print(_overview())
        return OK
    if given[0] in ("-V", "--version"):
        print(f"evoprune {__version__}")
        return OK
    name = given[0]
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean `evoprune {close[0]}`?" if close else ""
        what = "option" if name.startswith("-") else "command"
        print(f"evoprune: there is no {what} {name!r}.{hint}\n\n{_overview()}", file=sys.stderr)
        return USAGE
    from evoprune.allocator import keep_freed
    from evoprune.commands._parsing import Voice, parse

    keep_freed()
    voice = Voice()
    try:
        call = parse(name, known[name][0], given[1:])
        voice = call.voice
        with _said(voice):
            call.run()
    except SystemExit as exit:
        return exit.code if isinstance(exit.code, int) else USAGE
    except KeyboardInterrupt:
        print(f"evoprune {name}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:
        print(f"evoprune {name}: {_told(error, voice)}", file=sys.stderr)
        return USAGE if isinstance(error, WRONG_USAGE) else FAILED
    return OK


@contextmanager
def _said(voice: Voice) -> Iterator[None]:
    """Silence standard error, or tell more there, while a command works."""
    if voice.quiet:
        with Path(os.devnull).open("w") as nothing, redirect_stderr(nothing):
            yield
        return
    started = time.monotonic()
    if voice.verbose:
        versions = f"evoprune {__version__}, torch {metadata.version('torch')}"
        print(f"{versions}, Python {platform.python_version()}, {platform.platform()}", file=sys.stderr)
    yield
    if voice.verbose:
        print(f"took {time.monotonic() - started:.1f} s", file=sys.stderr)


def _told(error: Exception, voice: Voice) -> str:
    """An error as people read it; what nobody foresaw comes with the place of its traceback."""
    trace = f"\n{traceback.format_exc()}" if voice.verbose else ""
    if isinstance(error, EvopruneError):
        return f"{error}{trace}"
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{where}{trace}"
    if not voice.verbose:
        with tempfile.NamedTemporaryFile(
            "w", prefix="evoprune-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(traceback.format_exc())
        trace = f"\nits traceback is in {file.name}"
    return f"nobody foresaw this error: {type(error).__name__}: {error}{trace}"


def _overview() -> str:
    width = max(len(name) for group in COMMANDS.values() for name in group)
    lines = ["evoprune: evolve channel-pruning functions and prune networks with them", ""]
    for group, commands in COMMANDS.items():
        lines.append(f"{group}:")
        lines += [f"  {name:<{width}}  {what}" for name, (_, what) in commands.items()]
        lines.append("")
    lines += [
        "Every command has --help (with examples), --quiet and --verbose.",
        "",
        "Next:  evoprune evolve --preset demo     evolves functions, in minutes",
        "       evoprune functions xi_star        shows the function that the paper found",
        "       evoprune prune digits --retrain   prunes a small network with it",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
