"""Work as SLURM jobs: on a real SLURM, or with commands that only say what they are told."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import toys
import trained
from evoprune.errors import ConfigError, MissingExtraError, RunError
from evoprune.runs import queue
from evoprune.runs import work as works
from evoprune.runs.files import read_json, write_json
from evoprune.runs.job import REFUSED, asked_to_end
from evoprune.runs.journal import Journal, comparable, read
from evoprune.runs.queue import State, Unreachable
from evoprune.runs.slurm import Cluster, Slurm
from evoprune.runs.work import EVALUATE, PREPARE, SCORE, Work

KEEPS = [{"first": [0, 1, index], "second": [2, 3, 4]} for index in (2, 3, 4, 5)]


class Place:
    """A run's folder with executors on it, each the next driver's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []
        for name in ("evals", "tasks"):
            (folder / name).mkdir()
        (folder / "journal.jsonl").touch()
        self.journal = Journal(folder / "journal.jsonl")

    def driver(self, retries: int = 1, **cluster: object) -> Slurm:
        self.journal.close()
        self.journal = Journal(self.folder / "journal.jsonl")
        chosen = Cluster(**{"memory": "1GB", "poll": 0.3, **cluster})  # type: ignore[arg-type]
        return Slurm(
            self.folder, chosen, journal=self.journal, threads=1, retries=retries, say=self.said.append
        )

    def ordered(self, number: int = 0, trouble: str = "") -> str:
        work = Work(
            EVALUATE,
            "toy",
            "toys:Layer",
            {"trouble": trouble, "every": 1},
            kept={"channels": KEEPS[number], "constant": []},
            seed=5,
        )
        return works.order(self.folder, work)

    def results(self, executor: Slurm, *keys: str) -> list[works.Table]:
        done: list[str] = []
        while len(done) < len(keys):
            done += executor.finished(60)
        results = [works.result(self.folder, key) for key in keys]
        return [result for result in results if result is not None]

    def jobs(self) -> list[str]:
        records = read(self.folder / "journal.jsonl").records
        return [job for record in records if record["event"] == "submitted" for job in record["jobs"]]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    folder = tmp_path / "it"
    folder.mkdir()
    made = Place(folder)
    yield made
    made.journal.close()


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where toys that stall say which job and process they are in."""
    made = tmp_path / "pipe"
    os.mkfifo(made)
    monkeypatch.setenv("TOY_PIPE", str(made))
    return made


def stalled(pipe: Path) -> tuple[str, int]:
    """The job and the process of the next toy that stalls."""
    job, process = pipe.read_text().split()
    return job, int(process)


def scontrol(*arguments: str) -> None:
    subprocess.run(["scontrol", *arguments], check=True)


def succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0


def said(*command: str) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.stdout


def disturb(how: str, job: str, process: int) -> None:
    """What happens to jobs."""
    if how == "kill -9":
        os.kill(process, signal.SIGKILL)
    elif how == "scancel":
        subprocess.run(["scancel", job], check=True)
    elif how == "preempted":
        scontrol("requeue", job)
    elif how == "out of time":  # the signal that SLURM sends before the time is over
        subprocess.run(["scancel", "--signal=USR2", job], check=True)
    elif how == "node down and up":
        node = f"nodename={os.uname().nodename.partition('.')[0]}"
        scontrol("update", node, "state=down", "reason=test")
        # A node that fails takes its processes with it. This one has to end them before it comes back:
        # SLURM drains a node that is sent a job whose earlier start it has not ended yet ("Duplicate jobid").
        while "No job steps exist" not in said("scontrol", "listpids"):
            select.select([], [], [], 0.1)
        # Refused where the node has come back by itself.
        subprocess.run(["scontrol", "update", node, "state=resume"], capture_output=True)
    elif how == "scancel all that wait":
        subprocess.run(["scancel", "--state=PENDING", f"--user={os.getuid()}"], check=True)
    elif how == "scancel the array":
        subprocess.run(["scancel", job.partition("_")[0]], check=True)
    else:
        assert how == "slurmctld restarted"
        scontrol("shutdown", "slurmctld")
        while succeeds("sinfo"):
            pass
        while not succeeds("slurmctld") or not succeeds("sinfo"):  # its port is not free at once
            select.select([], [], [], 0.2)
        os.kill(process, signal.SIGKILL)


DISTURBANCES = ["kill -9", "scancel", "preempted", "out of time", "node down and up"]

# On a real SLURM.


@pytest.mark.heavy
@pytest.mark.parametrize("how", DISTURBANCES)
def test_a_disturbed_job_gives_the_same_result(slurm: None, place: Place, pipe: Path, how: str) -> None:
    key, executor = place.ordered(trouble="stall once"), place.driver()
    executor.submit([key])
    disturb(how, *stalled(pipe))
    (result,) = place.results(executor, key)
    expected = toys.Layer(place.folder / "tasks" / "toy").evaluate(
        works.Kept.of({"channels": KEEPS[0], "constant": []}), 5
    )
    assert result["accuracy"] == expected.accuracy
    again = how in ("kill -9", "scancel")  # the others go back into the queue by themselves
    assert len(place.jobs()) == (2 if again else 1)
    assert any("tried again, 1 of 1" in said for said in place.said) == again, place.said


@pytest.mark.heavy
def test_a_job_that_used_up_its_requeues_is_given_up(slurm: None, place: Place, pipe: Path) -> None:
    key, executor = place.ordered(trouble="stall once"), place.driver(requeues=0)
    executor.submit([key])
    disturb("out of time", *stalled(pipe))
    (result,) = place.results(executor, key)
    assert not result["ok"]
    assert "requeued 1 times (preempted, out of time, or its node failed), allowed are 0" in result["error"]


@pytest.mark.heavy
def test_a_job_that_always_dies_is_given_up_with_its_last_words(slurm: None, place: Place) -> None:
    executor = place.driver()
    bad, good = place.ordered(1, "die"), place.ordered(0)
    executor.submit([bad, good])
    failed, fine = place.results(executor, bad, good)
    assert fine["ok"]
    assert failed["error"] == "its SLURM job ended as FAILED; given up after 2 attempts"
    assert "Killed" in failed["traceback"]


@pytest.mark.heavy
def test_a_requeued_training_goes_on_from_its_last_epoch(
    slurm: None, place: Place, pipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = place.driver()
    prepared = Work(PREPARE, "digits", "trained:Digits")
    executor.submit([works.order(place.folder, prepared)])
    place.results(executor, prepared.key)
    shared = place.folder / "tasks" / "digits"
    with monkeypatch.context() as without:
        without.delenv("TOY_PIPE")
        kept = works.Kept(trained.Digits(shared).kept("l1").channels)
        elsewhere = shutil.copytree(shared, place.folder / "elsewhere")
        undisturbed = trained.Digits(elsewhere).evaluate(kept, 5)

    work = Work(EVALUATE, "digits", "trained:Digits", kept=kept.table(), seed=5)
    executor.submit([works.order(place.folder, work)])
    disturb("out of time", *stalled(pipe))
    (result,) = place.results(executor, work.key)
    assert result["accuracy"] == undisturbed.accuracy
    told = (shared / "epochs.txt").read_text().splitlines()
    assert told == ["from 0", "epoch 1", "epoch 2", "from 2", "epoch 3", "epoch 4"]


@pytest.mark.heavy
def test_jobs_outlive_their_driver(slurm: None, place: Place, pipe: Path) -> None:
    """Neither a job that ended meanwhile nor one that still runs is submitted again."""
    keys = [place.ordered(0), place.ordered(1, "wait")]
    first = place.driver()
    first.submit(keys)
    with pipe.open("w"):  # opens once the toy waits at the other end
        first.close()
        assert "a resumed run picks up what they find. To end them: scancel" in place.said[-1]
        second = place.driver()
        second.submit(keys)
    assert all(result["ok"] for result in place.results(second, *keys))
    assert len(place.jobs()) == 2 and len(toys.calls(place.folder)) == 2


@pytest.mark.heavy
def test_jobs_are_found_whose_driver_died_before_it_learnt_their_ids(
    slurm: None, place: Place, pipe: Path
) -> None:
    key = place.ordered(1, "wait")
    first = place.driver()
    first.submit([key])
    with pipe.open("w"):
        path = place.folder / "journal.jsonl"
        os.truncate(path, path.read_bytes()[:-1].rfind(b"\n") + 1)
        assert place.jobs() == []
        second = place.driver()
        second.submit([key])
    assert place.results(second, key)[0]["ok"]
    assert place.jobs() == [] and len(toys.calls(place.folder)) == 1


@pytest.mark.heavy
def test_a_job_has_the_threads_and_gpus_that_were_asked_for(slurm: None, place: Place) -> None:
    executor = place.driver(gpus=1, cpus=2, setup=("export OMP_NUM_THREADS=6",))
    work = Work(SCORE, "toy", "toys:environment", functions=("F",))
    key = works.order(place.folder, work)
    executor.submit([key])
    (result,) = place.results(executor, key)
    (scored,) = result["functions"]
    assert scored["channels"]["OMP_NUM_THREADS"] == [6]
    assert scored["channels"]["CUDA_VISIBLE_DEVICES"] in ([0], [1])
    script = next((place.folder / "slurm").glob("*_submission.sh")).read_text()
    assert "--gpus-per-node=1" in script and "--requeue" in script
    assert script.count("--cpus-per-task=2") == 2, "of the job, and of the step in it"


@pytest.mark.heavy
def test_what_slurm_refuses_is_told(slurm: None, place: Place) -> None:
    executor = place.driver(partition="no-such-partition")
    with pytest.raises(
        RunError, match=r"sbatch refused the jobs.*invalid partition specified: no-such-partition"
    ):
        executor.submit([place.ordered()])


CONFIG = """
seed = 3
tasks = [{name = "a", factory = "toys:Layer", options = {trouble = "%s", every = 2}}]
population = {size = 8, generations = 2, soap = 3, selected = 3, children = 3, immigrants = 2}
run = {executor = "%s", workers = 2, retries = 9}
slurm = {memory = "1GB", poll = 0.3, parallel = 2}
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "evoprune.cli", *arguments],
        cwd=folder,
        env=toys.surroundings(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[bytes]) -> None:
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said.decode()


def evolved(folder: Path, executor: str, trouble: str = "") -> subprocess.Popen[bytes]:
    folder.mkdir()
    (folder / "toy.toml").write_text(CONFIG % (trouble, executor))
    return start(folder, "evolve", "toy.toml", "--name", "it")


def whole(folder: Path) -> tuple[list[str], str]:
    """The journal as it is compared, and the hall of fame."""
    run = folder / "runs" / "it"
    return comparable(read(run / "journal.jsonl").records), (run / "hall_of_fame.csv").read_text()


def evaluated(run: Path) -> set[str]:
    """The evaluations that have left their result."""
    orders = [read_json(path.with_name("work.json")) for path in run.glob("evals/*/result.json")]
    return {
        toys.call(order["task"], order["kept"]["channels"], order["seed"])
        for order in orders
        if order["kind"] == EVALUATE
    }


@pytest.mark.heavy
def test_every_disturbance_in_one_evolution(slurm: None, tmp_path: Path, pipe: Path) -> None:
    """The same in this process, with workers, and as jobs that meet every trouble there is, their driver's
    death included; and no evaluation that was finished is repeated."""
    for executor in ("inline", "local"):
        finish(evolved(tmp_path / executor, executor))
    undisturbed = whole(tmp_path / "inline")
    assert whole(tmp_path / "local") == undisturbed

    folder = tmp_path / "slurm"
    run = folder / "runs" / "it"
    stalls = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    driver = evolved(folder, "slurm", "stall once")
    todo = [
        "scancel all that wait",
        "scancel the array",
        "slurmctld restarted",
        *DISTURBANCES,
        "driver killed",
    ]
    snapshots = []
    while driver.poll() is None:
        if not select.select([stalls], [], [], 0.2)[0]:
            continue
        for line in os.read(stalls, 4096).splitlines():
            job, process = line.decode().split()
            snapshots.append((evaluated(run), Counter(toys.calls(run))))
            how = todo.pop(0) if todo else "kill -9"
            if how == "driver killed":
                driver.send_signal(signal.SIGKILL)
                driver.communicate()
                driver = start(folder, "resume", "it")
                how = "scancel"
            if how == "scancel all that wait":
                disturb(how, job, int(process))
                how = "kill -9"
            with suppress(ProcessLookupError):  # its node went down just before
                disturb(how, job, int(process))
    os.close(stalls)
    finish(driver)
    assert not todo, "everything has happened"
    assert whole(folder) == undisturbed
    begun = Counter(toys.calls(run))
    assert begun.total() > len(begun)
    for finished, begun_before in snapshots:
        assert not finished & (begun - begun_before).keys()


# With commands that only say what they are told.


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of commands that comes first: none works until `says` makes it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for name in ("sbatch", "srun", "squeue", "sacct", "scontrol"):
        says(folder, name, "", code=1)
    return folder


def says(folder: Path, command: str, text: str, code: int = 0) -> None:
    """Have a command say something, and note that it was called."""
    (folder / f"{command}.says").write_text(text)
    script = folder / command
    script.write_text(
        f'#!/bin/sh\necho "$@" >> {folder}/{command}.calls\ncat {folder}/{command}.says\nexit {code}\n'
    )
    script.chmod(0o755)


def test_states_come_from_whoever_can_tell(commands: Path) -> None:
    says(commands, "squeue", "7|0|RUNNING|None\n7|1|PENDING|Priority\n8|N/A|COMPLETING|None\n")
    says(commands, "sacct", "7_2|CANCELLED by 0|0:15\n7_3|RUNNING|0:0\n9|OUT_OF_MEMORY|3:125\n")
    says(
        commands,
        "scontrol",
        "JobId=70 ArrayJobId=7 ArrayTaskId=3 JobState=FAILED Reason=None ExitCode=75:0\n"
        "JobId=71 ArrayJobId=7 ArrayTaskId=2 JobState=COMPLETED Reason=None ExitCode=0:0\n",
    )
    assert queue.states(["7_0", "7_1", "7_2", "7_3", "8", "9", "10"]) == {
        "7_0": State("RUNNING", reason="None"),
        "7_1": State("PENDING", reason="Priority"),
        "8": State("COMPLETING", reason="None"),
        "7_2": State("CANCELLED"),
        "9": State("OUT_OF_MEMORY", 3),
        "7_3": State("FAILED", 75),
    }
    says(commands, "sacct", "Slurm accounting storage is disabled\n", code=1)
    assert queue.states(["7_2"]) == {"7_2": State("COMPLETED")}


def test_jobs_that_ended_before_they_began_are_told_together(commands: Path) -> None:
    says(commands, "squeue", "")
    says(commands, "sacct", "7_[2-3,5%4]|CANCELLED by 0|0:0\n")
    says(
        commands,
        "scontrol",
        "JobId=9 ArrayJobId=9 ArrayTaskId=1,3-4%100 ArrayTaskThrottle=100 JobState=CANCELLED ExitCode=0:0\n",
    )
    wanted = ["7_2", "7_3", "7_5", "9_1", "9_3", "9_4"]
    assert queue.states([*wanted, "7_4", "9_2"]) == dict.fromkeys(wanted, State("CANCELLED"))


def test_jobs_that_have_not_ended_cost_one_question(commands: Path) -> None:
    says(commands, "squeue", "7|0|RUNNING|None\n")
    assert queue.states(["7_0"])["7_0"].live
    assert not (commands / "sacct.calls").exists() and not (commands / "scontrol.calls").exists()


def test_a_queue_that_does_not_answer_ends_no_job(commands: Path) -> None:
    says(commands, "sacct", "7|FAILED|1:0\n")
    with pytest.raises(Unreachable, match="squeue"):
        queue.states(["7"])


def finish_job(place: Place, key: str) -> None:
    """What the job would write."""
    write_json(place.folder / "evals" / key / "result.json", {"key": key, "ok": True, "accuracy": 0.5})


def test_what_ends_is_submitted_again_together_in_an_array(commands: Path, place: Place) -> None:
    says(commands, "sbatch", "Submitted batch job 7\n")
    keys = [place.ordered(number) for number in range(4)]
    executor = place.driver(poll=0.01)
    executor.submit(keys)
    assert place.jobs() == ["7_0", "7_1", "7_2", "7_3"]
    says(commands, "sbatch", "Submitted batch job 8\n")
    says(commands, "squeue", "7|0|RUNNING|None\n7|1|PENDING|Priority\n8|0|RUNNING|None\n8|1|RUNNING|None\n")
    says(commands, "sacct", "7_2|NODE_FAIL|0:0\n7_3|TIMEOUT|0:0\n")
    while executor.running < 3:
        assert executor.finished(0.05) == []
    assert place.jobs()[4:] == ["8_0", "8_1"]
    assert [said.partition("; ")[0] for said in place.said] == [
        f"{keys[2]}: its SLURM job 7_2 ended as NODE_FAIL",
        f"{keys[3]}: its SLURM job 7_3 ended as TIMEOUT",
    ]
    for key in keys:
        finish_job(place, key)
    assert sorted(executor.finished(60)) == sorted(keys)
    assert executor.running == 0


def test_a_job_that_nobody_knows_is_lost_only_after_some_looks(commands: Path, place: Place) -> None:
    says(commands, "sbatch", "Submitted batch job 7\n")
    says(commands, "squeue", "")
    executor = place.driver(poll=0.001, retries=0)
    key = place.ordered()
    executor.submit([key])
    (result,) = place.results(executor, key)
    assert len((commands / "squeue.calls").read_text().splitlines()) == 3
    assert result["error"] == "its SLURM job ended as LOST; given up after one attempt"


def test_a_job_that_ended_well_is_given_time_for_its_result_to_show(commands: Path, place: Place) -> None:
    """On a shared disk, what one machine has written another may see only later."""
    says(commands, "sbatch", "Submitted batch job 7\n")
    says(commands, "squeue", "")
    says(commands, "sacct", "7|COMPLETED|0:0\n")
    executor = place.driver(poll=0.1, retries=0)
    key = place.ordered()
    executor.submit([key])
    while not (commands / "sacct.calls").exists():
        assert executor.finished(0.001) == []
    finish_job(place, key)
    (result,) = place.results(executor, key)
    assert result["ok"] and place.said == []


def test_how_jobs_of_earlier_drivers_ended_is_not_held_against_their_work(
    commands: Path, place: Place
) -> None:
    """Nobody was there, or the one who was has told of it and somebody has mended what was wrong."""
    says(commands, "sbatch", "Submitted batch job 7\n")
    says(commands, "squeue", "")
    keys = [place.ordered(0), place.ordered(1)]
    place.driver().submit(keys)
    says(commands, "sacct", f"7_0|FAILED|{REFUSED}:0\n7_1|FAILED|1:0\n")
    executor = place.driver(poll=0.01, retries=0)
    executor.submit(keys)
    says(commands, "sbatch", "Submitted batch job 8\n")
    while len(place.jobs()) < 4:
        assert executor.finished(0.01) == []
    says(commands, "sacct", f"8_0|FAILED|{REFUSED}:0\n")
    with pytest.raises(RunError, match=f"working on {keys[0]} failed, in the SLURM job 8_0"):
        executor.finished(5)


def test_the_last_jobs_of_a_key_are_those_that_are_picked_up(commands: Path, place: Place) -> None:
    """Those before had ended, or sbatch had given no answer for them; one driver died before the answer."""
    key, other = place.ordered(0), place.ordered(1)
    records = [
        {"event": "submitting", "name": "lost", "keys": [key, other]},
        {"event": "submitting", "name": "first", "keys": [key, other]},
        {"event": "submitted", "name": "first", "jobs": ["7_0", "7_1"]},
        {"event": "submitting", "name": "second", "keys": [other]},
    ]
    place.journal.append(*({**record, "generation": -1, "index": -1} for record in records))
    says(commands, "squeue", "5|lost\n5|lost\n8|second\n9|of somebody else\n")
    executor = place.driver(poll=0.01)
    assert (commands / "squeue.calls").read_text().count("\n") == 1
    executor.submit([key, other])
    says(commands, "squeue", "5|0|RUNNING|None\n5|1|RUNNING|None\n7|0|RUNNING|None\n8|N/A|RUNNING|None\n")
    while executor.running < 2:
        assert executor.finished(0.01) == []
    assert place.said == ["2 SLURM jobs are of an earlier driver: picked up"]


def test_why_jobs_wait_is_told_once_unless_it_is_their_turn_that_they_wait_for(
    commands: Path, place: Place
) -> None:
    says(commands, "sbatch", "Submitted batch job 7\n")
    says(commands, "squeue", "7|0|PENDING|Priority\n7|1|PENDING|PartitionTimeLimit\n")
    executor = place.driver(poll=0.01)
    executor.submit([place.ordered(0), place.ordered(1)])
    executor.finished(0.05)
    assert place.said == ["SLURM lets jobs wait: PartitionTimeLimit"]


def test_a_silent_slurm_is_waited_for(commands: Path, place: Place) -> None:
    says(commands, "sbatch", "sbatch: error: Unable to contact slurm controller (connect failure)\n", code=1)
    script = (commands / "sbatch").read_text()
    (commands / "sbatch").write_text(script.replace("sbatch.says", "sbatch.says >&2"))
    executor = place.driver(poll=0.01)
    key = place.ordered()
    executor.submit([key])
    assert executor.finished(0.05) == [] and place.jobs() == []
    says(commands, "sbatch", "Submitted batch job 7\n")
    assert executor.finished(0.05) == [] and place.jobs() == ["7"]
    assert len([said for said in place.said if "Unable to contact slurm controller" in said]) == 1
    assert len([said for said in place.said if "SLURM does not answer" in said]) == 1
    finish_job(place, key)
    assert executor.finished(60) == [key]


def test_a_held_job_is_told_once(commands: Path, place: Place) -> None:
    says(commands, "sbatch", "Submitted batch job 7\n")
    says(commands, "squeue", "7|N/A|PENDING|JobHeldAdmin\n")
    executor = place.driver(poll=0.01)
    executor.submit([place.ordered()])
    executor.finished(0.05)
    assert [said for said in place.said if "scontrol release 7" in said] == place.said


def test_ctrl_c_reaches_neither_sbatch_nor_squeue(commands: Path, place: Place) -> None:
    """Nor does it end a run before it has learnt the ids of its jobs."""
    script = f"#!{sys.executable}\nimport os\nos.kill(os.getpid(), {signal.SIGINT:d})\n"
    (commands / "sbatch").write_text(script + "print('Submitted batch job 7')\n")
    executor = place.driver()
    executor.submit([place.ordered()])
    assert place.jobs() == ["7"]
    (commands / "squeue").write_text(f"#!{sys.executable}\nimport os\nexit(f'group {{os.getpgrp()}}')\n")
    with pytest.raises(Unreachable, match="group ") as caught:
        queue.states(["7"])
    assert f"group {os.getpgrp()}" not in str(caught.value)


@pytest.mark.parametrize(
    ("stands", "ends"), [("PENDING", True), ("COMPLETING", True), ("", True), ("RUNNING", False)]
)
def test_a_job_that_is_asked_to_end_does_unless_it_may_still_run(
    commands: Path, monkeypatch: pytest.MonkeyPatch, stands: str, ends: bool
) -> None:
    """Cancelled or queued again: it is soon killed. Still running: a warning ahead of a preemption."""
    codes: list[int] = []
    monkeypatch.setattr("os._exit", codes.append)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    says(commands, "squeue", stands)
    asked_to_end(signal.SIGTERM, None)
    assert codes == [128 + signal.SIGTERM] * ends


def test_a_job_that_slurm_holds_since_it_did_not_start_is_released(commands: Path, place: Place) -> None:
    says(commands, "sbatch", "Submitted batch job 7\n")
    says(commands, "squeue", "7|N/A|PENDING|launch failed requeued held\n")
    executor = place.driver(poll=0.01)
    executor.submit([place.ordered()])
    executor.finished(0.05)
    assert place.said == [
        "SLURM holds the job 7 (launch failed requeued held); to let it run: scontrol release 7"
    ], "where it may not be released"
    says(commands, "scontrol", "")
    executor.finished(0.05)
    assert (commands / "scontrol.calls").read_text().splitlines()[-1] == "release 7"
    assert place.said[1:] == ["SLURM held the job 7, which did not start on a node; released"]


def test_arrays_are_no_larger_than_slurm_takes(
    commands: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evoprune.runs.slurm.ARRAY", 3)
    says(commands, "sbatch", "Submitted batch job 7\n")
    executor = place.driver(parallel=2)
    keys = [place.ordered(number) for number in range(4)]
    executor.submit(keys[:3])
    (script,) = (place.folder / "slurm").glob("*_submission.sh")
    assert "#SBATCH --array=0-2%2\n" in script.read_text()
    executor.submit(keys)
    assert place.jobs() == ["7_0", "7_1", "7_2", "7_0", "7_1", "7_2", "7"]


def test_what_is_missing_is_told(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="sbatch, srun, squeue, scontrol is not on the PATH"):
        place.driver()
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'evoprune\[slurm\]'"):
        place.driver()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"time": 1}, "time must be 2 or more"),
        ({"poll": 0.0}, "poll must be above 0"),
        ({"options": {"array": "0-3"}}, "'array' is for evoprune to set"),
    ],
)
def test_settings_are_checked(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Cluster(**given)  # type: ignore[arg-type]
