"""Evolve functions on a small network, explain the best one, and make a page about the run.

A miniature of `make demo`. From a shell: evoprune evolve, evoprune explain, evoprune report.

    python examples/04_evolve_and_explain.py
"""

import evoprune
from evoprune.cli import main

# The same keys as in a TOML file; what is not given is as the paper has it.
settings = {
    "tasks": [{"name": "digits", "options": {"recipe": {"epochs": 1}}}],
    "population": {
        "size": 10,
        "generations": 3,
        "soap": 5,
        "selected": 3,
        "children": 5,
        "immigrants": 2,
    },
    "run": {"executor": "inline"},  # in this process; `local`, the default, has workers
}
run = evoprune.evolve(settings, runs="runs/examples")
for generation in run:
    print(f"generation {generation.number}: best {generation.best.fitness:.1%}")
print(f"\n{run.comparison.text()}\n")

best = run.hall_of_fame().fittest[0].individual.expr
main(["explain", str(best)])
print()
main(["report", run.folder.name, "--runs", "runs/examples"])
