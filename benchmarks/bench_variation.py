"""How fast new functions are bred, with the paper's settings, on one core.

    python benchmarks/bench_variation.py [--generations 25] [--children 200] [--json FILE]

Writes benchmarks/results/variation.json unless told otherwise.

Counted are distinct, valid, non-constant children, each probed; new ones only, none twice in the whole run.
Selection is by tournament on a fitness drawn from the function's digest, so that the population drifts as it
would, without any task. Beside it the published way: operators and operands drawn at random whatever their
shapes, any subtree exchanged for any other, and again until the result is valid; its share of valid children
is what retrying has to overcome.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path

from numpy.random import Generator, default_rng

from evoprune.evolution.probe import Probe
from evoprune.evolution.selection import tournament
from evoprune.evolution.variation import Child, Nursery, Variation, index
from evoprune.expression.library import SOAP, functions
from evoprune.expression.tree import Expr
from evoprune.expression.vocabulary import OPERANDS, OPERATORS

RESULT = Path(__file__).parent / "results" / "variation.json"
POPULATION, RANDOM, SELECTED, TOURNAMENT = 40, 20, 10, 4


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--generations", type=int, default=25)
    parser.add_argument("--children", type=int, default=200, help="bred in each generation")
    parser.add_argument("--json", type=Path, default=RESULT)
    given = parser.parse_args()
    ours, published = bred(given.generations, given.children), retried(given.generations, given.children)
    result = {"ours": ours, "published": published}
    print(f"children per second:                {ours['children_per_second']:8,.0f}")
    print(f"valid of what is drawn:             {ours['valid']:8.1%}")
    print(f"valid of what the published draws:  {published['valid']:8.1%}")
    print(f"  random trees among them:          {published['valid_random']:8.1%}")
    print(f"constant of its valid random trees: {published['constant_random']:8.1%}")
    given.json.write_text(json.dumps(result, indent=2) + "\n")


def fitness(expr: Expr) -> float:
    """A number between 0 and 1 that looks drawn at random."""
    return int.from_bytes(expr.canonical_key[:4], "little") / 2**32


def selected(rng: Generator, population: list[Expr]) -> list[Expr]:
    won = tournament(rng, [fitness(expr) for expr in population], entrants=TOURNAMENT, winners=SELECTED)
    return [population[place] for place in won]


def soap() -> list[Expr]:
    return [expr for name in SOAP if (expr := functions[name].expr) is not None]


def bred(generations: int, children: int) -> dict[str, float]:
    """Breeding as an evolution does it."""
    nursery = Nursery()
    hand_made = soap()
    known = {expr.canonical_key for expr in hand_made}
    count, started = 0, time.perf_counter()

    def new(child: Child | None) -> Expr:
        nonlocal count
        assert child is not None, "breeding gave up"
        known.add(child.expr.canonical_key)
        count += 1
        return child.expr

    rng = default_rng(0)
    population = [hand_made[index(rng, len(hand_made))] for _ in range(POPULATION - RANDOM)]
    population += [new(nursery.random(rng, known)) for _ in range(RANDOM)]
    for generation in range(1, generations):
        parents = selected(default_rng([1, generation]), population)
        brood = [
            new(nursery.child(default_rng([2, generation, place]), parents, known))
            for place in range(children)
        ]
        population = parents + brood[: POPULATION - SELECTED]
    seconds = time.perf_counter() - started
    return {
        "children": count,
        "seconds": seconds,
        "children_per_second": count / seconds,
        "valid": nursery.born / nursery.tried,
    }


# The published way


def anything(rng: Generator, height: int, full: bool) -> Expr:
    """A random tree whatever the shapes."""
    words = [*OPERATORS] if full else [*OPERATORS, *OPERANDS]
    word = words[index(rng, len(words))]
    if height == 0 or word in OPERANDS:
        operands = [*OPERANDS]
        return Expr(operands[index(rng, len(operands))])
    return Expr(word, [anything(rng, height - 1, full) for _ in range(OPERATORS[word].arity)])


def anywhere(rng: Generator, a: Expr, b: Expr) -> Expr:
    """A tree with any subtree of another in the place of any of its own."""
    return a.replace(index(rng, a.size), b.at(index(rng, b.size)))


def retried(generations: int, children: int) -> dict[str, float]:
    """Drawing until valid: what is asked for is the same, the shapes are not looked at while drawing."""
    settings, probe = Variation(), Probe()
    why_random: Counter[str | None] = Counter()
    why: Counter[str | None] = Counter()
    rng = default_rng(0)
    hand_made = soap()

    def random_tree() -> Expr:
        height = settings.min_height + index(rng, settings.max_height - settings.min_height + 1)
        return anything(rng, height, bool(rng.random() < 0.5))

    population = [hand_made[index(rng, len(hand_made))] for _ in range(POPULATION - RANDOM)]
    while len(population) < POPULATION:
        expr = random_tree()
        objection = probe.objection(expr)
        why_random[objection] += 1
        if objection is None:
            population.append(expr)
    for _ in range(5_000):
        why_random[probe.objection(random_tree())] += 1
    for generation in range(1, generations):
        parents = selected(default_rng([1, generation]), population)
        brood: list[Expr] = []
        while len(brood) < min(children, POPULATION - SELECTED):
            child = parents[index(rng, SELECTED)]
            if rng.random() < settings.crossover:
                child = anywhere(rng, child, parents[index(rng, SELECTED)])
            if rng.random() < settings.mutation:
                child = child.replace(index(rng, child.size), random_tree())
            if child in parents:
                continue
            objection = probe.objection(child)
            why[objection] += 1
            if objection is None:
                brood.append(child)
        population = parents + brood
    constant, valid = why_random["constant"], why_random[None]
    return {
        "valid": why[None] / why.total(),
        "valid_random": valid / why_random.total(),
        "constant_random": constant / (constant + valid),
    }


if __name__ == "__main__":
    main()
