"""A run as it stands, read from its folder without disturbing it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from evoprune import config
from evoprune.errors import EvopruneError
from evoprune.evolution.hall_of_fame import HallOfFame, percent
from evoprune.evolution.ledger import Ledger
from evoprune.evolution.settings import build
from evoprune.evolution.watching import duration
from evoprune.runs.folder import RUNS, RunFolder, find, is_locked
from evoprune.runs.journal import read


@dataclass(frozen=True)
class Summary:
    """How a run stands."""

    name: str
    path: Path
    state: str
    """`running`, `ended`, `stopped`, or what is wrong with it."""
    generations: int
    """How many are judged."""
    planned: int
    retrainings: int
    saved: int
    seconds: float
    fitness: float | None
    function: str
    hall_of_fame: str

    def table(self) -> dict[str, object]:
        """As plain values."""
        return asdict(self) | {"path": str(self.path)}

    def line(self, width: int) -> str:
        """In a line of a list."""
        best = "" if self.fitness is None else f"{percent(self.fitness)}  {self.function}"
        return f"{self.name:<{width}}  {self.state:<8}  {self.generations:>3}/{self.planned:<3}  {best}"

    def text(self) -> str:
        """By itself."""
        rows = {
            "run": str(self.path),
            "state": self.state,
            "generations": f"{self.generations} of {self.planned} judged",
            "retrainings": f"{self.retrainings}, {self.saved} saved",
            "time": duration(self.seconds),
        }
        lines = [f"{name + ':':<13}{value}" for name, value in rows.items()]
        return "\n".join([*lines, "", self.hall_of_fame]).rstrip()


def summary(folder: RunFolder) -> Summary:
    """How a run stands; a damaged one is told as such."""
    try:
        settings = build(config.read(folder.config))
        ledger = Ledger.of(read(folder.journal).records)
    except EvopruneError as error:
        return Summary(folder.name, folder.path, f"damaged: {error}", 0, 0, 0, 0, 0.0, None, "", "")
    planned = settings.population.generations
    judged = len(ledger.generations)
    state = "stopped"
    if is_locked(folder):
        state = "running"
    elif ledger.ended and ledger.ended_after == judged - 1:
        state = "ended"
    best = ledger.best()
    return Summary(
        name=folder.name,
        path=folder.path,
        state=state,
        generations=judged,
        planned=planned,
        retrainings=len(ledger.outcomes),
        saved=ledger.savings.total(),
        seconds=ledger.elapsed,
        fitness=None if best is None else best.fitness,
        function="" if best is None else str(best.individual.expr),
        hall_of_fame=HallOfFame.of(ledger.judged.values()).text(list(settings.weights())) if best else "",
    )


def run_functions(name: str, runs: Path = RUNS) -> list[tuple[str, str, float]]:
    """The functions in a run's hall of fame: a label, the text, the fitness."""
    folder = find(runs, name)
    hall = HallOfFame.of(Ledger.of(read(folder.journal).records).judged.values())
    labelled = [(f"best {rank}", each) for rank, each in enumerate(hall.fittest, start=1)]
    labelled += [(f"best of size {each.individual.expr.size}", each) for each in hall.of_sizes]
    return [(label, str(each.individual.expr), each.fitness) for label, each in labelled]


def bred_functions(name: str, runs: Path = RUNS) -> str:
    """The same as a table for people."""
    rows = run_functions(name, runs)
    if not rows:
        return f"the run {name!r} has judged no function yet"
    width = max(len(label) for label, _, _ in rows)
    return "\n".join(f"{label:<{width}}  {percent(fitness):>6}  {text}" for label, text, fitness in rows)
