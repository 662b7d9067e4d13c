"""The command line: find the command, run it, print errors as people read them.

Each command is a module under `evoprune.commands` whose `main` is handed to tyro. They are listed
here by name only, so that `evoprune --help` imports neither tyro nor torch.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from importlib import import_module

from evoprune import __version__
from evoprune.errors import EvopruneError

# group → command → (module under evoprune.commands, what it does in a sentence)
COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Evolution": {
        "evolve": ("evolve", "breed pruning functions by a preset or a configuration of your own"),
        "resume": ("resume", "go on with a run that was killed, interrupted or stopped"),
        "runs": ("runs", "list the runs and their best functions, or show one"),
        "report": ("report", "one page about one or several runs: progress, best function, ancestry, cost"),
    },
    "Functions": {
        "functions": ("functions", "list the pruning functions of the library, or show one"),
        "explain": ("explain", "what a function reads, its invariances, and what it ranks channels like"),
        "select": ("select", "select features of images, and draw which ones each function keeps"),
    },
    "Tasks": {
        "tasks": ("tasks", "list the tasks: network, data, cut, recipe, cost"),
        "train": ("train", "train the base network of a task and keep it"),
        "score": ("score", "score and rank the channels of a task's network, in one pass for many functions"),
        "prune": ("prune", "score, cut and retrain, and print the paper's table row"),
        "compare": ("compare", "compare pruning functions, paired by seed"),
        "plot": ("plot", "draw comparisons: accuracy against FLOPs, a line per function"),
    },
}

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 failed, 2 wrong usage."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    known = {name: home for group in COMMANDS.values() for name, home in group.items()}
    if not given or given[0] in ("-h", "--help", "help"):
        print(_overview())
        return OK
    if given[0] in ("-V", "--version"):
        print(f"evoprune {__version__}")
        return OK
    name = given[0]
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean `evoprune {close[0]}`?" if close else ""
        print(f"evoprune: there is no command {name!r}.{hint}\n\n{_overview()}", file=sys.stderr)
        return USAGE
    import tyro

    module = import_module(f"evoprune.commands.{known[name][0]}")
    try:
        tyro.cli(
            module.main,
            prog=f"evoprune {name}",
            args=given[1:],
            config=(tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff),
        )
    except EvopruneError as error:
        print(f"evoprune {name}: {error}", file=sys.stderr)
        return FAILED
    except SystemExit as exit:
        return exit.code if isinstance(exit.code, int) else USAGE
    except KeyboardInterrupt:
        print(f"evoprune {name}: interrupted", file=sys.stderr)
        return INTERRUPTED
    return OK


def _overview() -> str:
    width = max(len(name) for group in COMMANDS.values() for name in group)
    lines = ["evoprune: evolve channel-pruning functions and prune networks with them", ""]
    for group, commands in COMMANDS.items():
        lines.append(f"{group}:")
        lines += [f"  {name:<{width}}  {what}" for name, (_, what) in commands.items()]
        lines.append("")
    lines.append("`evoprune COMMAND --help` tells what a command takes.")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
