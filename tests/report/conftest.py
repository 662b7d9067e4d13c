"""Toy runs to report on, made once: ended, random from the start, with failures, and stopped half-way."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from evoprune import config
from evoprune.evolution.settings import build
from evoprune.evolution.starting import evolve
from evoprune.report.reading import RunView, view
from evoprune.runs.folder import RunFolder
from evoprune.runs.journal import line_of

NOTE = "toys </script><script>window.broken = 1</script> & <b>bold</b>"


def settings(**changed: object) -> dict[str, object]:
    return {
        "seed": 3,
        "about": NOTE,
        "tasks": [
            {"name": "a", "factory": "toys:Layer"},
            {"name": "b", "factory": "toys:Layer", "options": {"seed": 1}},
        ],
        "population": {
            "size": 12,
            "generations": 5,
            "soap": 6,
            "tournament": 3,
            "selected": 3,
            "children": 7,
            "immigrants": 2,
        },
        "run": {"executor": "inline"},
    } | changed


def worked(source: dict[str, object], runs: Path, name: str, *overrides: str) -> RunFolder:
    with evolve(source, runs=runs, name=name, overrides=overrides) as run:
        for _ in run:
            pass
    return RunFolder(runs / name)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the toy runs."""
    folder = tmp_path_factory.mktemp("runs")
    judged = settings(judges=[{"name": "j", "factory": "toys:Layer", "options": {"seed": 2}}])
    worked(judged, folder, "plain")
    worked(settings(), folder, "random", "population.soap=0", "population.immigrants_from=random")
    failing = settings(
        tasks=[{"name": "a", "factory": "toys:Layer", "options": {"trouble": "raise", "every": 2}}]
    )
    worked(failing, folder, "failing")
    worked(settings(), folder, "stopped", "budget.evaluations=20")
    return folder


@pytest.fixture(scope="session")
def plain(runs: Path) -> RunView:
    return view(RunFolder(runs / "plain"))


def big_run(folder: Path, generations: int = 250, size: int = 40) -> RunFolder:
    """A run of many evaluations, as its journal would tell it."""
    rng = random.Random(0)
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(config.dump(build(settings(population={"generations": generations}))))
    (folder / "log.txt").touch()
    lines = [line_of({"event": "run", "generation": -1, "index": -1, "version": "0", "seed": 3, "at": "-"})]

    def record(event: str, generation: int, index: int, **what: object) -> None:
        record = {"event": event, "generation": generation, "index": index, **what}
        lines.append(line_of(record | {"elapsed": 1.0 * generation}))

    for generation in range(generations):
        texts = [
            f"add(div(var_g(F-), ridge(var_g(F+), {rng.random():.6f})), sum_g(sq(sub(mean_s(F), "
            f"ridge(mean_g(F-), {rng.random():.6f})))))"
            for _ in range(size)
        ]
        for task in "ab":
            scored = [
                {"text": text, "kept": f"{generation}-{index}", "constant": [], "everywhere": False}
                for index, text in enumerate(texts)
            ]
            record("scored", generation, "ab".index(task), task=task, scoring="-", functions=scored)
        for index, text in enumerate(texts):
            parents = [[generation - 1, rng.randrange(size)] for _ in range(2)] if generation else []
            origin = "crossover" if generation else "random"
            record("born", generation, index, text=text, origin=origin, parents=parents)
            accuracy = 0.5 + 0.4 * (1 - 0.99**generation) * rng.random()
            for task in "ab":
                record(
                    "evaluated", generation, index, task=task, kept=f"{generation}-{index}", seconds=1.0,
                    accuracy=accuracy,
                )  # fmt: skip
            record(
                "fitness", generation, index, fitness=accuracy, accuracies={"a": accuracy, "b": accuracy},
                saved={},
            )  # fmt: skip
        record("generation", generation, size, best=1.0, median=0.5, function="", retrainings=1, savings={})
    (folder / "journal.jsonl").write_bytes(b"".join(lines))
    return RunFolder(folder)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    """A run whose best is lost again in later generations."""
    return view(big_run(tmp_path_factory.mktemp("small") / "small", generations=12, size=4))


@pytest.fixture(scope="session")
def tangled(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    """A run whose last functions have several hundred ancestors."""
    return view(big_run(tmp_path_factory.mktemp("tangled") / "tangled", generations=20, size=40))


@pytest.fixture(scope="session")
def big(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    """10,000 evaluations."""
    return view(big_run(tmp_path_factory.mktemp("big") / "big"))
