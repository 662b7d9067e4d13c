"""What an executor is handed: a flat list of steps, each distinct one once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from evoprune.expression.check import infer
from evoprune.expression.shapes import Shape
from evoprune.expression.tree import Expr
from evoprune.expression.vocabulary import DEFAULT_RHO

# How often a step's value must be computed: once for the layer, for each channel, for each class.
LAYER, CHANNEL, CLASS = 0, 1, 2
MAPS = frozenset({"F", "F+", "F-"})
SCOPE_OF_OPERAND = {"W": LAYER, "W_I": CHANNEL, "B": CHANNEL, "F": CHANNEL, "F+": CLASS, "F-": CLASS}


OUTER_MEDOID = "geo(F-)"
"""A leaf of its own: the distances between images are the same for all classes."""


@dataclass(frozen=True)
class Kernel:
    """rbf(A, B), A and B being `F`, `F+` or `F-`; `over` is the `sum_g` or `mean_g` taken of it, if any.

    All of them are blocks of one matrix between all images, which no class has to compute anew.
    """

    first: str
    second: str
    over: str = ""


@dataclass(frozen=True)
class Step:
    """One value: a leaf, or an operator on the values of earlier steps.

    `leaf` is what the executor must look up: an operand, a statistic, a Kernel, OUTER_MEDOID; None for
    operators. `rho` is what `ridge` adds, or what `inv` adds to a square matrix.
    """

    name: str
    args: tuple[int, ...]
    shape: Shape
    scope: int
    rho: float = 0.0
    leaf: object = None


@dataclass(frozen=True)
class Program:
    """Steps in an order in which each can be computed from those before it, and which are results."""

    steps: tuple[Step, ...]
    roots: tuple[int, ...]

    @cached_property
    def last_reads(self) -> dict[int, int]:
        """Of each step that another reads, the last one that does."""
        return {arg: i for i, step in enumerate(self.steps) for arg in step.args}


def compile(expressions: Iterable[Expr]) -> Program:
    """The steps of several expressions read straight from the operands, equal subtrees once."""
    steps: list[Step] = []
    place: dict[Expr, int] = {}
    roots = []
    for root in expressions:
        shapes = infer(root)
        for node in root.distinct():
            if node in place:
                continue
            place[node] = len(steps)
            leaf = _leaf(node)
            args = () if leaf else tuple(place[arg] for arg in node.args)
            scope = max(SCOPE_OF_OPERAND[name] for name in node.operands)
            steps.append(Step(node.name, args, shapes[node], scope, rho_of(node, shapes), leaf))
        roots.append(place[root])
    return reachable(steps, roots)


def reachable(steps: list[Step], roots: list[int]) -> Program:
    """The steps that the roots need, renumbered."""
    needed = set(roots)
    for i in range(len(steps) - 1, -1, -1):
        if i in needed:
            needed.update(steps[i].args)
    places = {old: new for new, old in enumerate(sorted(needed))}
    kept = tuple(replace(steps[old], args=tuple(places[arg] for arg in steps[old].args)) for old in places)
    return Program(kept, tuple(places[root] for root in roots))


def _leaf(node: Expr) -> object:
    if not node.args:
        return node.name
    if node.name == "geo" and node.args[0].name == "F-":
        return OUTER_MEDOID
    over = node.name if node.name in ("sum_g", "mean_g") else ""
    kernel = node.args[0] if over else node
    if kernel.name == "rbf" and all(arg.name in MAPS for arg in kernel.args):
        return Kernel(kernel.args[0].name, kernel.args[1].name, over)
    return None


def rho_of(node: Expr, shapes: dict[Expr, Shape]) -> float:
    """The ridge of a node: `inv` adds none over a literal ridge of a square matrix."""
    if node.name == "inv":
        arg = node.args[0]
        return 0.0 if arg.name == "ridge" and shapes[arg.args[0]].is_square else DEFAULT_RHO
    return node.rho or 0.0
