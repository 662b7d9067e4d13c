"""What an executor is handed: a flat list of steps, each distinct one once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from evoprune.expression.check import infer
from evoprune.expression.shapes import Shape
from evoprune.expression.tree import Expr
from evoprune.expression.vocabulary import DEFAULT_RHO

# How often a step's value must be computed: once for the layer, for each channel, for each class.
LAYER, CHANNEL, CLASS = 0, 1, 2
SCOPE_OF_OPERAND = {"W": LAYER, "W_I": CHANNEL, "B": CHANNEL, "F": CHANNEL, "F+": CLASS, "F-": CLASS}


@dataclass(frozen=True)
class Step:
    """One value: a leaf, or an operator on the values of earlier steps.

    `leaf` is what the executor must look up (an operand's name, or a statistic); None for operators.
    `rho` is what `ridge` adds, or what `inv` adds to a square matrix.
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
            args = tuple(place[arg] for arg in node.args)
            leaf = None if node.args else node.name
            scope = max((steps[i].scope for i in args), default=0) if args else SCOPE_OF_OPERAND[node.name]
            place[node] = len(steps)
            steps.append(Step(node.name, args, shapes[node], scope, rho_of(node, shapes), leaf))
        roots.append(place[root])
    return Program(tuple(steps), tuple(roots))


def rho_of(node: Expr, shapes: dict[Expr, Shape]) -> float:
    """The ridge of a node: `inv` adds none over a literal ridge of a square matrix."""
    if node.name == "inv":
        arg = node.args[0]
        return 0.0 if arg.name == "ridge" and shapes[arg.args[0]].is_square else DEFAULT_RHO
    return node.rho or 0.0
