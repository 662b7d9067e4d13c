"""How jobs stand in a SLURM queue, asked of whichever of its commands can tell.

`squeue` knows every job that has not ended. Of the others `sacct` tells where the site keeps accounts, and
`scontrol`, for some minutes, where it does not. A job that none of them knows is left out.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

LIVE = frozenset(
    {
        *(
            "PENDING",
            "CONFIGURING",
            "RUNNING",
            "SUSPENDED",
            "STOPPED",
            "COMPLETING",
            "SIGNALING",
            "STAGE_OUT",
        ),
        *("REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESIZING", "RESV_DEL_HOLD", "SPECIAL_EXIT"),
    }
)
"""The states in which a job has not ended; in all others it has."""

LAUNCH_FAILED = "launch failed requeued held"
"""The reason of a job that SLURM holds since it could not be started where it was sent."""

TIMEOUT = 60.0
"""Seconds that one of SLURM's commands may take."""


@dataclass(frozen=True)
class State:
    """How a job stands."""

    name: str
    """As SLURM calls it: RUNNING, COMPLETED, NODE_FAIL, …"""
    code: int = 0
    """What the job exited with."""
    reason: str = ""
    """Why it waits."""

    @property
    def live(self) -> bool:
        """Whether the job has not ended."""
        return self.name in LIVE


class Unreachable(Exception):
    """SLURM does not answer; it may later."""


def states(jobs: Iterable[str]) -> dict[str, State]:
    """The states of jobs, named like 17 or 17_3; raises Unreachable."""
    wanted = set(jobs)
    found = {job: state for job, state in _queued().items() if job in wanted}
    for ask in (_accounted, _remembered):
        missing = wanted - found.keys()
        if missing:
            found |= {job: state for job, state in ask(missing).items() if job in missing}
    return found


def numbers() -> dict[str, str]:
    """The numbers of this user's jobs and job arrays that have not ended, by their names; may raise
    Unreachable."""
    lines = _said("squeue", "--noheader", f"--user={os.getuid()}", "--format=%F|%j")
    pairs = (line.strip().partition("|") for line in lines)
    return {name: number for number, _, name in pairs}


def release(job: str) -> None:
    """Let a held job run; may raise Unreachable."""
    _said("scontrol", "release", job)


def _queued() -> dict[str, State]:
    """All jobs of this user that have not ended."""
    lines = _said("squeue", "--noheader", "--array", f"--user={os.getuid()}", "--format=%F|%K|%T|%r")
    found = {}
    for line in lines:
        number, index, name, reason = line.strip().split("|", 3)
        found[number if index == "N/A" else f"{number}_{index}"] = State(name, reason=reason)
    return found


def _accounted(jobs: Iterable[str]) -> dict[str, State]:
    """What the accounts say; nothing where there are none."""
    numbers = ",".join(sorted({job.partition("_")[0] for job in jobs}))
    options = ("--noheader", "--allocations", "--parsable2", "--format=JobID,State,ExitCode")
    try:
        lines = _said("sacct", *options, f"--jobs={numbers}")
    except Unreachable:
        return {}
    found: dict[str, State] = {}
    for line in lines:
        parts = line.split("|")
        # Accounts lag behind: what has left the queue has ended, whatever they say.
        if len(parts) == 3 and parts[1] and (name := parts[1].split()[0]) not in LIVE:
            number, _, indices = parts[0].partition("_")
            found |= dict.fromkeys(_named(number, indices.strip("[]")), State(name, _code(parts[2])))
    return found


def _remembered(jobs: Iterable[str]) -> dict[str, State]:
    """What the controller still has in memory."""
    found: dict[str, State] = {}
    for number in sorted({job.partition("_")[0] for job in jobs}):
        try:
            lines = _said("scontrol", "--oneliner", "show", "job", number)
        except Unreachable:  # also said of a job that is forgotten
            continue
        for line in lines:
            facts = dict(re.findall(r"(\w+)=(\S*)", line))
            jobs = _named(facts.get("ArrayJobId") or facts.get("JobId", ""), facts.get("ArrayTaskId", ""))
            if (state := facts.get("JobState", "")) and state not in LIVE:
                found |= dict.fromkeys(jobs, State(state, _code(facts.get("ExitCode", ""))))
    return found


def _named(number: str, indices: str) -> list[str]:
    """The jobs of an array; those that never began stand together, like 4-7,9%100."""
    names = []
    for part in filter(None, indices.partition("%")[0].split(",")):
        first, _, last = part.partition("-")
        if first.isdigit():
            names += [f"{number}_{index}" for index in range(int(first), int(last or first) + 1)]
    return names or [number]


def _code(text: str) -> int:
    """The exit code in `code:signal`."""
    code = text.partition(":")[0]
    return int(code) if code.isdigit() else 0


def _said(*command: str) -> list[str]:
    """The lines that a command says."""
    try:
        # A group of its own: Ctrl-C is for this process.
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT, check=False, process_group=0
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unreachable(f"{command[0]}: {error}") from error
    if done.returncode:
        raise Unreachable(f"{command[0]}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return [line for line in done.stdout.splitlines() if line.strip()]
