"""Random trees, mutation and crossover: valid, bounded, new, and the same for the same seed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

from evoprune import functions, parse
from evoprune.errors import ConfigError
from evoprune.evolution.probe import Limits, Probe
from evoprune.evolution.variation import Child, Nursery, Variation, crossover, random_tree
from evoprune.expression.check import infer
from evoprune.expression.library import SOAP
from evoprune.expression.tree import Expr
from evoprune.expression.vocabulary import OPERANDS, OPERATORS

seeds = st.integers(0, 2**32 - 1)
PARENTS = [expr for name in SOAP if (expr := functions[name].expr) is not None]


def heights(expr: Expr) -> set[int]:
    """How deep the operands lie."""
    found, stack = set(), [(expr, 0)]
    while stack:
        node, depth = stack.pop()
        stack += [(arg, depth + 1) for arg in node.args]
        if not node.args:
            found.add(depth)
    return found


@given(seeds, st.sampled_from(["scalar", "vector", "matrix"]), st.integers(0, 4), st.booleans())
def test_random_trees_have_their_height_and_mostly_their_kind(
    seed: int, kind: str, height: int, full: bool
) -> None:
    expr = random_tree(default_rng(seed), kind, height, full=full)
    if expr is None:
        assert (kind, height) == ("scalar", 0), "no operand is a scalar, everything else can be grown"
        return
    if full:
        assert heights(expr) == {height}
    else:
        assert max(heights(expr)) <= height
        assert height == 0 or expr.args, "a grown tree is an operand only where the height is 0"
    if not any(node.name == "tr" for node in expr.walk()):
        assert infer(expr)[expr].kind == kind


def test_trees_are_of_all_heights_alike_and_full_as_often_as_grown() -> None:
    nursery, rng = Nursery(), default_rng(2)
    trees = [tree for _ in range(2000) if (tree := nursery.grown(rng, "matrix")) is not None]
    of_height = Counter(max(heights(tree)) for tree in trees)
    assert set(of_height) == {0, 1, 2, 3, 4}
    assert all(count / 2000 == pytest.approx(1 / 5, abs=0.04) for count in of_height.values())
    high = [tree for tree in trees if max(heights(tree)) == 4]
    assert 0.5 < sum(heights(tree) == {4} for tree in high) / len(high) < 0.95


def test_every_word_of_the_language_is_bred() -> None:
    rng, words = default_rng(0), Counter[str]()
    for _ in range(4000):
        expr = random_tree(rng, "scalar", 3, full=bool(rng.random() < 0.5))
        assert expr is not None
        words.update(node.name for node in expr.walk())
    assert set(words) == OPERANDS.keys() | OPERATORS.keys()


@given(seeds)
def test_crossover_exchanges_two_subtrees_of_equal_shape(seed: int) -> None:
    rng = default_rng(seed)
    probe = Probe()
    a, b = (PARENTS[int(i)] for i in rng.integers(len(PARENTS), size=2))
    pair = crossover(rng, a, b, probe.shape)
    assert pair is not None
    words = [Counter(node.name for node in each.walk()) for each in (a, b, *pair)]
    assert words[0] + words[1] == words[2] + words[3], "nothing is lost, nothing is added"
    assert pair[0].size + pair[1].size == a.size + b.size
    for parent, child in zip((a, b), pair, strict=True):
        assert infer(child)[child] == infer(parent)[parent], "what is around the subtree fits as before"


def test_parents_are_not_exchanged_whole() -> None:
    shape = Probe().shape
    a, b = parse("add(var_g(W_I), var_g(F))"), parse("sqrt(sum_g(abs(W_I)))")
    for seed in range(50):
        pair = crossover(default_rng(seed), a, b, shape)
        assert pair is not None and pair[0] != b


def test_trees_that_share_no_shape_have_no_children() -> None:
    shape = Probe().shape
    for seed in range(20):
        assert crossover(default_rng(seed), parse("var_g(W_I)"), parse("mean_g(F)"), shape) is None


@given(seeds)
def test_a_mutant_differs_in_one_subtree_of_the_same_kind(seed: int) -> None:
    nursery = Nursery(Variation(mutation=1.0, max_height=2))
    rng = default_rng(seed)
    before = PARENTS[seed % len(PARENTS)]
    mutant = nursery.mutant(rng, before)
    if mutant is None:
        return
    # Walking both, everything before the first difference and everything after the subtrees is alike.
    ours, theirs = ([(node.name, node.rho) for node in each.walk()] for each in (before, mutant))
    head = next((i for i, (x, y) in enumerate(zip(ours, theirs, strict=False)) if x != y), None)
    if head is not None:
        fits = [
            place
            for place in range(head + 1)
            for new in [len(theirs) - len(ours) + before.at(place).size]
            if new > 0 and before.replace(place, mutant.at(place)) == mutant and mutant.at(place).size == new
        ]
        assert fits, f"{mutant} is not {before} with one subtree replaced"


@given(seeds)
def test_children_are_valid_new_and_know_their_parents(seed: int) -> None:
    nursery = Nursery()
    rng = default_rng(seed)
    known = {expr.canonical_key for expr in PARENTS}
    for _ in range(10):
        child = nursery.child(rng, PARENTS, known)
        assert child is not None
        assert Probe().objection(child.expr) is None
        assert child.expr.canonical_key not in known
        assert child.origin in ("mutation", "crossover", "crossover, mutation")
        assert len(child.parents) == (1 if child.origin == "mutation" else 2)
        assert all(0 <= parent < len(PARENTS) for parent in child.parents)
        known.add(child.expr.canonical_key)


def test_the_same_seed_gives_the_same_children_whatever_was_bred_before() -> None:
    def bred(nursery: Nursery) -> list[Child]:
        children = [nursery.child(default_rng([7, i]), PARENTS) for i in range(30)]
        children += [nursery.random(default_rng([8, i])) for i in range(10)]
        return [child for child in children if child is not None]

    used = Nursery()
    for i in range(50):
        used.child(default_rng(i), PARENTS)
    assert bred(used) == bred(Nursery())
    assert len({child.expr for child in bred(Nursery())}) > 30


def test_how_often_trees_mutate_and_cross() -> None:
    """Without crossover there are only mutants, without mutation only crossings; with both at 0.75, both."""
    rng = default_rng(1)
    origins = {}
    for mutation, crossing in ((0.75, 0.75), (1.0, 0.0), (0.0, 1.0)):
        nursery = Nursery(Variation(mutation=mutation, crossover=crossing))
        children = [nursery.child(rng, PARENTS) for _ in range(300)]
        origins[mutation, crossing] = Counter(child.origin for child in children if child)
    assert set(origins[1.0, 0.0]) == {"mutation"}
    assert set(origins[0.0, 1.0]) == {"crossover"}
    both = origins[0.75, 0.75]
    assert both["crossover, mutation"] > both["crossover"] > 0 and both["mutation"] > 0


def test_breeding_is_bounded() -> None:
    """Where nothing can be bred, breeding ends."""
    nursery = Nursery(Variation(mutation=0.0, crossover=1.0))
    assert nursery.child(default_rng(0), [parse("var_g(W_I)")]) is None
    narrow = Nursery(Variation(limits=Limits(max_size=2, max_depth=1)))
    everything = {
        Expr(o, [Expr(f)]).canonical_key for o in OPERATORS if OPERATORS[o].arity == 1 for f in OPERANDS
    }
    assert narrow.random(default_rng(0), everything) is None


def test_limits_hold() -> None:
    nursery = Nursery(Variation(limits=Limits(max_size=9, max_depth=4)))
    parents = [parse("sum_g(abs(W_I))"), parse("var_g(F+)"), parse("mean_g(sub(F, mean_s(F-)))")]
    for i in range(100):
        child = nursery.child(default_rng(i), parents)
        assert child is not None and child.expr.size <= 9 and child.expr.depth <= 4


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"mutation": 1.5}, "probability from 0 to 1"),
        ({"min_height": 3, "max_height": 2}, "from min_height to max_height"),
        ({"max_height": 0}, "at least 1"),
        ({"mutation": 0.0, "crossover": 0.0}, "both 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, float], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Variation(**settings)  # type: ignore[arg-type]


def test_the_kinds_of_subtrees_that_are_exchanged_are_all_there() -> None:
    """Crossovers among SOAP exchange scalars, vectors and matrices, not only the scalars."""
    probe, kinds = Probe(), Counter[str]()
    for i in range(400):
        rng = default_rng(i)
        a, b = PARENTS[i % 10], PARENTS[(i // 10) % 10]
        before = {node.key for node in a.walk()}
        pair = crossover(rng, a, b, probe.shape)
        if pair:
            new = [node for node in b.walk() if node.key in {n.key for n in pair[0].walk()} - before]
            kinds.update(probe.shape(node).kind for node in new[:1])
    assert set(kinds) == {"scalar", "vector", "matrix"}
    assert np.isclose(sum(kinds.values()), 400, atol=150)
