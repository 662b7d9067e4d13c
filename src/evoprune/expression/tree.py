"""The frozen expression tree.

Nothing here recurses: a tree may be thousands of levels deep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from math import isfinite, nan
from typing import Any, TypeVar

from evoprune.errors import ExpressionError
from evoprune.expression.vocabulary import DEFAULT_RHO, OPERANDS, OPERATORS

T = TypeVar("T")

MAX_SIZE = 100_000
"""The most nodes a tree may have."""


@dataclass(frozen=True, slots=True, eq=False, repr=False, init=False)
class Expr:
    """An operand, or an operator with its operands.

    `rho` is the number that `ridge` adds; other nodes have none.

    >>> from evoprune import parse
    >>> parse("div(var_g(F+), ridge(var_g(F-), 0.05))").size
    6
    """

    name: str
    args: tuple[Expr, ...]
    rho: float | None
    size: int
    """The number of operators and operands."""
    depth: int
    """The number of operators on the longest way down; 0 for an operand."""
    operands: frozenset[str]
    """The operands it reads."""
    key: bytes = field(repr=False)
    """A digest: equal for equal trees, in any process."""
    canonical_key: bytes = field(repr=False)
    """A digest that also ignores the order of the operands of `add`, `mul` and `dot`."""

    def __init__(self, name: str, args: tuple[Expr, ...] | list[Expr] = (), rho: float | None = None) -> None:
        if not isinstance(name, str) or not isinstance(args, tuple | list):
            raise ExpressionError(
                "an Expr is a name and a tuple of operands, "
                f"got {type(name).__name__} and {type(args).__name__}"
            )
        name, args = str(name), tuple(args)  # a str of NumPy's has another repr, and so another key
        if name in OPERANDS:
            arity = 0
        elif name in OPERATORS:
            arity = OPERATORS[name].arity
        else:
            raise ExpressionError(
                f"{name!r} is neither an operand ({', '.join(OPERANDS)}) "
                f"nor an operator ({', '.join(OPERATORS)})"
            )
        if len(args) != arity:
            raise ExpressionError(f"{name} takes {arity} operand{'s' * (arity != 1)}, got {len(args)}")
        for arg in args:
            if not isinstance(arg, Expr):
                raise ExpressionError(f"an operand of {name} must be an Expr, got {type(arg).__name__}")
        if name == "ridge":
            try:
                number = DEFAULT_RHO if rho is None else float(rho)
            except (TypeError, ValueError, OverflowError):
                number = nan
            if not (isfinite(number) and number > 0):
                raise ExpressionError(f"ridge adds a number above 0, got {rho!r}")
            rho = number
        elif rho is not None:
            raise ExpressionError(f"only ridge takes a number, not {name}")
        size = 1 + sum([arg.size for arg in args])
        if size > MAX_SIZE:
            raise ExpressionError(f"a tree may have at most {MAX_SIZE} nodes, this one has {size}")
        own = _own(name, rho)
        key = _digest(own, [arg.key for arg in args])
        parts = [arg.canonical_key for arg in args]
        if len(args) == 2 and OPERATORS[name].commutative:
            parts.sort()
        put = object.__setattr__
        put(self, "name", name)
        put(self, "args", args)
        put(self, "rho", rho)
        put(self, "size", size)
        put(self, "depth", 1 + max([arg.depth for arg in args]) if args else 0)
        put(self, "operands", frozenset().union(*[arg.operands for arg in args]) if args else _LEAF[name])
        put(self, "key", key)
        put(self, "canonical_key", _digest(own, parts))

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, Expr) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        from evoprune.expression.text import to_text

        return to_text(self)

    def __repr__(self) -> str:
        return f"parse({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        from evoprune.expression.text import parse

        return parse, (str(self),)  # copying and sending to another process do not recurse either

    def __deepcopy__(self, memo: dict[int, Any]) -> Expr:
        return self

    @property
    def is_label_aware(self) -> bool:
        """Whether it reads `F+` or `F-` and is so evaluated class by class."""
        return any(OPERANDS[name].label_aware for name in self.operands)

    @property
    def order_dependent(self) -> bool:
        """Whether the order of images or filters can change its value."""
        from evoprune.expression.order import order_dependence

        return order_dependence(self) is not None

    def latex(self) -> str:
        """The formula in LaTeX, as in the paper."""
        from evoprune.expression.text import to_latex

        return to_latex(self)

    def tree(self) -> str:
        """The tree drawn with lines, for a terminal."""
        from evoprune.expression.text import to_tree

        return to_tree(self)

    def walk(self) -> Iterator[Expr]:
        """Every node, a node before its operands, operands from left to right."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.args))

    def distinct(self) -> list[Expr]:
        """Every distinct subtree once, operands before the nodes that read them."""
        order: dict[Expr, None] = {}
        stack = [(self, False)]
        while stack:
            node, ready = stack.pop()
            if node in order:
                continue
            if ready or not node.args:
                order[node] = None
            else:
                stack.append((node, True))
                stack.extend((arg, False) for arg in reversed(node.args))
        return list(order)

    def fold(self, function: Callable[[Expr, list[T]], T]) -> T:
        """Reduce bottom-up: `function(node, results of its operands)`, once per distinct subtree."""
        results: dict[Expr, T] = {}
        for node in self.distinct():
            results[node] = function(node, [results[arg] for arg in node.args])
        return results[self]

    def at(self, index: int) -> Expr:
        """The node at a position of `walk()`."""
        return self._path(index)[-1][0]

    def replace(self, old: int | Expr | Mapping[Expr, Expr], new: Expr | None = None) -> Expr:
        """A tree in which the node at a position of `walk()`, or every subtree equal to one, is another."""
        if isinstance(old, int):
            if new is None:
                raise ExpressionError("replace(position, new) needs the new subtree")
            for parent, child in reversed(self._path(old)[:-1]):
                args = list(parent.args)
                args[child] = new
                new = Expr(parent.name, args, parent.rho)
            return new
        if isinstance(old, Expr):
            if new is None:
                raise ExpressionError("replace(subtree, new) needs the new subtree")
            old = {old: new}
        swaps = old
        return self.fold(lambda node, args: swaps.get(node) or Expr(node.name, args, node.rho))

    def _path(self, index: int) -> list[tuple[Expr, int]]:
        """The nodes from the root to a position, each with which of its operands comes next."""
        if not 0 <= index < self.size:
            raise ExpressionError(f"there is no node {index}; the tree has positions 0 to {self.size - 1}")
        path: list[tuple[Expr, int]] = []
        node = self
        while index:
            index -= 1
            for child, arg in enumerate(node.args):
                if index < arg.size:
                    path.append((node, child))
                    node = arg
                    break
                index -= arg.size
        return [*path, (node, -1)]


_LEAF = {name: frozenset({name}) for name in OPERANDS}


@lru_cache(maxsize=4096)
def _own(name: str, rho: float | None) -> bytes:
    return repr((name, rho)).encode()


def _digest(own: bytes, parts: list[bytes]) -> bytes:
    return blake2b(own + b"".join(parts), digest_size=16).digest()
