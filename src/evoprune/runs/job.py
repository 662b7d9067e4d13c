"""What runs inside a SLURM job: one piece of work of a run, named by the run's folder and a key.

submitit pickles a `Job`, so it holds nothing else. Whatever is true of the work is in the run's folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from evoprune.errors import RunError
from evoprune.runs import work as works
from evoprune.runs.alarm import Overdue, alarm

REFUSED = 75
"""The exit code of a job that could not work for a reason that lies not in its work (the disk is full)."""


@dataclass(frozen=True)
class Job:
    """A piece of work as submitit takes it: called in the job, and once more whenever the job is requeued."""

    folder: str
    key: str
    requeues: int

    def __call__(self) -> None:
        """Do the work, from its last checkpoint on."""
        folder = Path(self.folder)
        if works.result(folder, self.key) is not None:
            return
        restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        if restarts > self.requeues:
            why = f"its SLURM job was requeued {restarts} times (preempted, out of time, or its node failed)"
            works.give_up(
                folder, self.key, f"{why}, allowed are {self.requeues}: see slurm.time and slurm.requeues"
            )
            return
        signal.signal(signal.SIGTERM, asked_to_end)
        limit = works.time_limit(folder, self.key)
        try:
            with alarm(limit) as set_alarm:
                works.Bench(folder).carry_out(self.key, begun=set_alarm)
        except Overdue as overdue:
            works.give_up(folder, self.key, f"took longer than {limit:g} seconds", works.traced(overdue))
        except (RunError, OSError) as error:
            print(f"refused: {works.said(error)}", file=sys.stderr, flush=True)
            raise SystemExit(REFUSED) from error

    def checkpoint(self) -> None:
        """Called by submitit when the job is to be preempted or runs out of time: back into the queue.

        Tasks write a checkpoint after every epoch, so nothing is to be saved here. submitit would leave by an
        exception, which a task could take for a failure of its own; therefore this process ends at once.
        """
        job = os.environ["SLURM_JOB_ID"]
        print(f"back into the queue: {self.key}", file=sys.stderr, flush=True)
        done = subprocess.run(["scontrol", "requeue", job], check=False)
        os._exit(done.returncode)


def asked_to_end(number: int, frame: FrameType | None) -> None:
    """SLURM sends this signal some time before it kills: at once where the job was cancelled or queued again,
    as a warning where it is still to run for a while."""
    stands = ["squeue", "--noheader", f"--jobs={os.environ['SLURM_JOB_ID']}", "--format=%T"]
    try:
        done = subprocess.run(stands, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return
    if done.returncode == 0 and done.stdout.strip() != "RUNNING":
        os._exit(128 + number)
