"""Many expressions to one plan: the statistics they need, and the steps that remain.

Most expressions reach the feature maps only through sums over images, which one pass over the data
can gather without keeping a map. Others need the rows of single images; they are evaluated whole on a
sample. `planner.py` tells which is which.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from evoprune.expression.check import check_scalar
from evoprune.expression.library import Function, resolve_all
from evoprune.expression.shapes import Axis
from evoprune.expression.tree import Expr
from evoprune.scoring.steps import (
    CHANNEL,
    CLASS,
    LAYER,
    Program,
    reachable,
)

F = Expr("F")


# What a leaf of the plan can be, beside an operand's name.


@dataclass(frozen=True)
class Statistic:
    """A value that the pass gathers for each channel.

    kind: `count` of images; `mean` or `var` of all entries; `pixel mean` or `pixel var`, for each
    column; `product` and `pixel product`; `scatter`, the sum over images of the outer product of
    the deviation from the mean map with itself.
    source: what is gathered, read from one image's row of `F`.
    over: `F`, all images; `F+` or `F-`, those of each class or of the others.
    """

    kind: str
    source: Expr
    over: str

    def __str__(self) -> str:
        if self.kind == "count":
            return f"count of the images of {self.over}"
        return f"{self.kind} of {self.source.replace(F, Expr(self.over))}"


@dataclass(frozen=True)
class Number:
    """A number that the planner put in."""

    value: float


@dataclass(frozen=True)
class Length:
    """The length of an axis, known for each site."""

    axis: Axis


@dataclass(frozen=True)
class Need:
    """Something to accumulate during the pass; statistics are read from it.

    kind: `moments` or `pixel moments` (mean, and the sum of squared deviations where `squares`, as
    `moments` always have), `products` or `pixel products`, `scatter`.
    """

    kind: str
    source: Expr
    by_class: bool
    squares: bool = False

    def covers(self, other: Need) -> bool:
        """Whether what this gathers also answers the other."""
        return (
            (self.kind, self.source) == (other.kind, other.source)
            and self.by_class >= other.by_class
            and self.squares >= other.squares
        )

    def entries(self, channels: int, pixels: int, classes: int) -> int:
        """How many float64 numbers this keeps at a site; of a source as wide as the maps."""
        of_channel = {"pixel moments": pixels, "pixel products": pixels, "scatter": pixels**2 + pixels}
        rows = classes if self.by_class else 1
        return rows * channels * of_channel.get(self.kind, 1) * (2 if self.squares else 1)

    def __str__(self) -> str:
        squares = " with squares" if self.squares else ""
        return f"{self.kind}{squares} of {self.source}, {'each class' if self.by_class else 'all images'}"


_NEEDS = {
    "mean": ("moments", True),
    "var": ("moments", True),
    "pixel mean": ("pixel moments", False),
    "pixel var": ("pixel moments", True),
    "product": ("products", False),
    "pixel product": ("pixel products", False),
    "scatter": ("scatter", False),
}


def need_of(statistic: Statistic) -> Need | None:
    """What must be accumulated for a statistic; counts are always known."""
    if statistic.kind == "count":
        return None
    kind, squares = _NEEDS[statistic.kind]
    return Need(kind, statistic.source, statistic.over != "F", squares)


def merged(needs: Iterable[Need]) -> tuple[Need, ...]:
    """As few as answer all of these at little more cost.

    Where any moments are kept for each class, all are: that costs nothing more. For pixel moments and
    products it does.
    """
    distinct = list(dict.fromkeys(needs))
    by_class = any(need.by_class for need in distinct if need.kind == "moments")
    distinct = [replace(n, by_class=by_class) if n.kind == "moments" else n for n in distinct]
    distinct = list(dict.fromkeys(distinct))
    return tuple(n for n in distinct if not any(m != n and m.covers(n) for m in distinct))


@dataclass(frozen=True)
class Plan:
    """How functions are scored: what one pass gathers, the steps after it, and which need a sample."""

    functions: tuple[Function, ...]
    needs: tuple[Need, ...]
    program: Program
    streamed: tuple[int, ...]
    """Positions in `functions`; the program has a root for each."""
    sampled: tuple[tuple[int, str], ...]
    """Positions in `functions`, each with the reason."""

    @property
    def reads_maps(self) -> bool:
        """Whether images are needed at all."""
        return bool(self.needs or self.sampled) or any(
            isinstance(step.leaf, Statistic) for step in self.program.steps
        )

    @property
    def label_aware(self) -> tuple[str, ...]:
        """The names of the functions that need labels."""
        return tuple(f.name for f in self.functions if f.expr is not None and f.expr.is_label_aware)

    def memory(self, channels: int, pixels: int, classes: int) -> int:
        """Bytes of the statistics at a site."""
        return 8 * sum(need.entries(channels, pixels, classes) for need in self.needs)

    def __repr__(self) -> str:
        return describe(self)


def plan(
    functions: str | Expr | Function | Iterable[str | Expr | Function],
    *,
    scatter: bool = True,
    class_maps: bool = True,
    class_scatter: bool = True,
) -> Plan:
    """Plan the scoring of one or many functions.

    scatter: whether scatter matrices `[pixel, pixel]` may be gathered, as is worth it for small maps.
    class_maps: whether a map may be kept for each class, as can be done for few classes or small maps.
    class_scatter: whether a scatter matrix may be, of even fewer and smaller ones.
    """
    found = resolve_all(functions)
    from evoprune.scoring.planner import NeedsRows, Planner
    from evoprune.scoring.rewrites import rewritten

    planner = Planner(scatter, class_maps, class_scatter)
    roots: list[int] = []
    streamed: list[int] = []
    sampled: list[tuple[int, str]] = []
    for position, function in enumerate(found):
        if function.expr is None:
            continue
        check_scalar(function.expr)
        try:
            roots.append(planner.value(rewritten(function.expr)))
            streamed.append(position)
        except NeedsRows as reason:
            sampled.append((position, str(reason)))
    program = reachable(planner.steps, roots)
    leaves = [step.leaf for step in program.steps if isinstance(step.leaf, Statistic)]
    needs = merged(need for need in map(need_of, leaves) if need is not None)
    return Plan(found, needs, program, tuple(streamed), tuple(sampled))


def describe(
    plan: Plan, sites: Sequence[tuple[str, int, int]] = (), classes: int = 10, limit: int = 60
) -> str:
    """A plan in words, as a query plan; with sites `(name, channels, pixels)`, what memory it takes."""
    lines = [f"plan for {len(plan.functions)} functions: one pass over the images"]
    lines.append(f"statistics ({len(plan.needs)}), for each channel")
    for need in plan.needs:
        each = need.entries(1, 1, 1), need.entries(1, 2, 1)
        size = (
            f"{8 * each[0]} B"
            if each[0] == each[1]
            else f"{8 * (2 if need.squares else 1)} B × "
            + ("pixels²" if need.kind == "scatter" else "pixels")
        )
        lines.append(f"  {need}: {size}{' × classes' if need.by_class else ''}")
    if sites:
        total = sum(plan.memory(channels, pixels, classes) for _, channels, pixels in sites)
        lines.append(f"  memory at {len(sites)} sites with {classes} classes: {total / 2**20:.2f} MiB")
    steps = plan.program.steps
    lines.append(f"steps after the pass ({len(steps)})")
    names = {LAYER: "layer", CHANNEL: "channel", CLASS: "class"}
    for i, step in enumerate(steps[:limit]):
        if step.leaf is None:
            what = f"{step.name}({', '.join(f'%{arg}' for arg in step.args)})"
            what += f" ρ={step.rho:g}" if step.rho else ""
        else:
            what = step.name if isinstance(step.leaf, str) else _leaf_text(step.leaf)
        lines.append(f"  %{i:<3} {what}  [{step.shape}, each {names[step.scope]}]")
    if len(steps) > limit:
        lines.append(f"  … and {len(steps) - limit} more")
    if plan.streamed:
        lines.append("streamed")
        for position, root in zip(plan.streamed, plan.program.roots, strict=True):
            lines.append(f"  {plan.functions[position].name} = %{root}")
    if plan.sampled:
        lines.append("on a sample of images")
        lines += [f"  {plan.functions[position].name}: {reason}" for position, reason in plan.sampled]
    return "\n".join(lines)


def _leaf_text(leaf: object) -> str:
    return (
        f"{leaf.value:g}"
        if isinstance(leaf, Number)
        else str(leaf.axis)
        if isinstance(leaf, Length)
        else str(leaf)
    )
