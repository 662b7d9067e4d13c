"""Many expressions to one plan: the statistics they need, and the steps that remain.

Most expressions reach the feature maps only through sums over images, which one pass over the data
can gather without keeping a map. The planner follows the rows of `F` up the tree. While each row
depends on its own image alone, it is a *source*, such as `F`, `sqrt(F)` or `tr(F)`; scaled and
shifted by values that are known only after the pass (`sub(F, mean_s(F))`) it stays one, because the
moments of a·x + b follow from those of x. A reduction of a source is a statistic. What mixes the rows
of different images in another way (`rbf(F+, F-)`, `geo(F)`) needs the rows themselves, and the whole
expression is then evaluated on a sample of images.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from evoprune.expression.check import check_scalar, infer
from evoprune.expression.library import Function, resolve
from evoprune.expression.shapes import SCALAR, Axis, Shape
from evoprune.expression.tree import Expr
from evoprune.expression.vocabulary import OPERATORS
from evoprune.scoring.steps import (
    CHANNEL,
    CLASS,
    LAYER,
    MAPS,
    SCOPE_OF_OPERAND,
    Program,
    Step,
    reachable,
    rho_of,
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

    kind: `moments` or `pixel moments` (mean, and the sum of squared deviations where `squares`),
    `products` or `pixel products`, `scatter`.
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
    "mean": ("moments", False),
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
    """The needs that no other one covers."""
    distinct = list(dict.fromkeys(needs))
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


def plan(functions: str | Expr | Function | Iterable[str | Expr | Function], *, scatter: bool = True) -> Plan:
    """Plan the scoring of one or many functions.

    scatter: whether scatter matrices `[pixel, pixel]` may be gathered, as is worth it for small maps.
    """
    many = [functions] if isinstance(functions, str | Expr | Function) else list(functions)
    found = tuple(resolve(function) for function in many)
    planner = _Planner(scatter)
    roots: list[int] = []
    streamed: list[int] = []
    sampled: list[tuple[int, str]] = []
    for position, function in enumerate(found):
        if function.expr is None:
            continue
        check_scalar(function.expr)
        try:
            roots.append(planner.value(function.expr))
            streamed.append(position)
        except _NeedsRows as reason:
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


class _NeedsRows(Exception):
    """Raised with the reason why an expression cannot be streamed."""


@dataclass(frozen=True)
class _Known:
    """A value that can be computed after the pass: the step that computes it."""

    step: int


@dataclass(frozen=True)
class _Base:
    """What a row is before it is scaled and shifted: a source, and perhaps a product of two rows."""

    over: str
    source: Expr | None
    pair: tuple[_Rows, _Rows] | None
    columns: Axis | None  # None where an image has one value, not a row of them


@dataclass(frozen=True)
class _Rows:
    """A value with a row per image: scale · base + shift.

    scale, shift: steps of scalars, or of vectors along the columns; None for 1 and 0.
    plain: the same rows as one source, where nothing in it has to wait for the pass.
    """

    base: _Base
    scale: int | None
    shift: int | None
    plain: Expr | None
    transposed: bool = False


_Form = _Known | _Rows


class _Planner:
    """Builds steps; equal steps are built once, over all expressions."""

    def __init__(self, scatter: bool) -> None:
        self.scatter = scatter
        self.steps: list[Step] = []
        self._places: dict[object, int] = {}
        self._forms: dict[Expr, _Form | _NeedsRows] = {}

    def value(self, expr: Expr) -> int:
        """The step that computes a scalar expression; raises _NeedsRows."""
        shapes = infer(expr)
        for node in expr.distinct():
            if node not in self._forms:
                try:
                    self._forms[node] = self._as_declared(self._form(node, shapes), shapes[node])
                except _NeedsRows as reason:
                    self._forms[node] = reason
            form = self._forms[node]
            if isinstance(form, _NeedsRows):
                raise form
        form = self._forms[expr]
        assert isinstance(form, _Known)  # a scalar has no rows
        return form.step

    def _as_declared(self, form: _Form, shape: Shape) -> _Form:
        """A value whose step knows height and width only where the language says so."""
        if isinstance(form, _Known) and self.steps[form.step].shape.maps and not shape.maps:
            return _Known(self._call("tran", form.step))
        return form

    # Building steps

    def _add(
        self, name: str, args: tuple[int, ...], shape: Shape, scope: int, rho: float, leaf: object
    ) -> int:
        key = (name, args, leaf, rho)
        if key not in self._places:
            self._places[key] = len(self.steps)
            self.steps.append(Step(name, args, shape, scope, rho, leaf))
        return self._places[key]

    def _call(self, name: str, *args: int, rho: float = 0.0) -> int:
        given = [self.steps[arg] for arg in args]
        shape = OPERATORS[name].rule(*(step.shape for step in given))
        return self._add(name, args, shape, max(step.scope for step in given), rho, None)

    def _number(self, value: float) -> int:
        return self._add("number", (), SCALAR, LAYER, 0.0, Number(value))

    def _statistic(self, kind: str, base: _Base) -> int:
        source = F if kind == "count" else base.source
        assert source is not None
        axes: tuple[Axis, ...] = ()
        if kind.startswith("pixel") and base.columns is not None:
            axes = (base.columns,)
        elif kind == "scatter" and base.columns is not None:
            axes = (base.columns, base.columns)
        scope = CHANNEL if base.over == "F" else CLASS
        keeps = infer(source)[source].maps and len(axes) == 1
        return self._add(kind, (), Shape(axes, keeps), scope, 0.0, Statistic(kind, source, base.over))

    # Forms

    def _form(self, node: Expr, shapes: dict[Expr, Shape]) -> _Form:
        if node.name in MAPS:
            columns = shapes[node].axes[1]
            return _Rows(_Base(node.name, F, None, columns), None, None, F)
        if not node.args:
            scope = SCOPE_OF_OPERAND[node.name]
            return _Known(self._add(node.name, (), shapes[node], scope, 0.0, node.name))
        forms = [self._forms[arg] for arg in node.args]
        if all(isinstance(form, _Known) for form in forms):
            args = tuple(form.step for form in forms if isinstance(form, _Known))
            scope = max(self.steps[arg].scope for arg in args)
            return _Known(self._add(node.name, args, shapes[node], scope, rho_of(node, shapes), None))
        return self._of_rows(node, [form for form in forms if not isinstance(form, _NeedsRows)], shapes)

    def _of_rows(self, node: Expr, forms: list[_Form], shapes: dict[Expr, Shape]) -> _Form:
        operator = OPERATORS[node.name]
        if operator.group == "statistics":
            assert isinstance(forms[0], _Rows)
            return self._reduced(node, forms[0])
        if operator.arity == 1:
            assert isinstance(forms[0], _Rows)
            return self._unary(node, forms[0], shapes)
        if operator.group == "elementwise":
            return self._binary(node, forms, shapes)
        first, second = forms
        if isinstance(first, _Rows) and isinstance(second, _Rows):
            values = first.base.columns is None and second.base.columns is None
            if node.name == "dot" or (node.name == "matmul" and values):
                return self._reduced(Expr("sum_g", (node,)), self._times(node, first, second))
        if node.name == "matmul":
            return self._matmul(node, first, second, shapes)
        raise _NeedsRows(f"{_short(node)} reads the rows of single images")

    def _unary(self, node: Expr, rows: _Rows, shapes: dict[Expr, Shape]) -> _Form:
        name = node.name
        vector = rows.base.columns is None
        if name == "tran":
            return rows if vector else replace(rows, transposed=not rows.transposed)
        if name == "ridge":
            if shapes[node.args[0]].is_square:
                raise _NeedsRows(f"{_short(node)} adds to single images")
            return self._affine(node, rows, "add", self._number(node.rho or 0.0), Expr(name, (F,), node.rho))
        if name == "sq":
            return self._times(node, rows, rows)
        plain = self._plain(node, rows)
        if name in ("abs", "sqrt") or (name == "inv" and vector):
            return self._source(rows, _simple(Expr(name, (plain,))), rows.base.columns)
        if name == "tr" and not rows.transposed and shapes[node.args[0]].maps and not vector:
            return self._source(rows, Expr(name, (plain,)), None)
        if name == "slice" and rows.transposed:
            return self._source(replace(rows, transposed=False), Expr(name, (Expr("tran", (plain,)),)), None)
        raise _NeedsRows(f"{_short(node)} reads the rows of single images")

    def _binary(self, node: Expr, forms: list[_Form], shapes: dict[Expr, Shape]) -> _Form:
        first, second = forms
        if isinstance(first, _Rows) and isinstance(second, _Rows):
            return self._both_rows(node, first, second)
        rows = first if isinstance(first, _Rows) else second
        known = second if isinstance(first, _Rows) else first
        assert isinstance(rows, _Rows) and isinstance(known, _Known)
        shape = self.steps[known.step].shape
        other = node.args[1] if rows is first else node.args[0]
        free = not (other.operands & MAPS)
        # A vector lies along the columns; along the images of a transposed or single-valued row it does not.
        fits = not shape.axes or (
            len(shape.axes) == 1 and not rows.transposed and shape.axes[0] == rows.base.columns
        )
        embedded = None
        if (
            free
            and rows.plain is not None
            and (not shape.axes or (len(shape.axes) == 1 and not rows.transposed))
        ):
            embedded = Expr(node.name, (F, other) if rows is first else (other, F))
        if fits and not (node.name == "div" and rows is second):
            if node.name == "sub" and rows is second:
                negative = self._affine(node, rows, "mul", self._number(-1.0), None)
                return replace(
                    self._affine(node, negative, "add", known.step, None),
                    plain=self._embed(rows, embedded),
                )
            return self._affine(node, rows, node.name, known.step, embedded)
        plain = self._embed(rows, embedded)
        if plain is not None and (not shape.axes or rows.base.columns is not None):
            return self._source(rows, plain, shapes[node].axes[-1] if shape.axes else rows.base.columns)
        raise _NeedsRows(f"{_short(node)} combines single images with a value of other images")

    def _both_rows(self, node: Expr, first: _Rows, second: _Rows) -> _Rows:
        same_rows = (
            first.base.over == second.base.over
            and first.transposed == second.transposed
            and first.base.columns == second.base.columns
        )
        if not same_rows:
            raise _NeedsRows(f"{_short(node)} pairs different images")
        if node.name == "mul":
            return self._times(node, first, second)
        if node.name in ("add", "sub") and first.base == second.base:
            one = self._number(1.0)
            zero = self._number(0.0)
            scale = self._call(node.name, *(one if r.scale is None else r.scale for r in (first, second)))
            shift = self._call(node.name, *(zero if r.shift is None else r.shift for r in (first, second)))
            plain = None
            if first.plain is not None and second.plain is not None:
                plain = Expr(node.name, (first.plain, second.plain))
            return _Rows(first.base, scale, shift, plain, first.transposed)
        if first.plain is None or second.plain is None:
            raise _NeedsRows(f"{_short(node)} combines rows that are known only after the pass")
        return self._source(first, Expr(node.name, (first.plain, second.plain)), first.base.columns)

    def _matmul(self, node: Expr, first: _Form, second: _Form, shapes: dict[Expr, Shape]) -> _Form:
        if isinstance(first, _Rows) and isinstance(second, _Rows):
            if (
                first.transposed
                and not second.transposed
                and first.base == second.base
                and first.base.columns is not None
                and first.base.source is not None
            ):
                return _Known(self._scattered(node, first, second))
            raise _NeedsRows(f"{_short(node)} pairs different images")
        rows, known = (first, second) if isinstance(first, _Rows) else (second, first)
        assert isinstance(rows, _Rows) and isinstance(known, _Known)
        shape = self.steps[known.step].shape
        if not shape.axes:  # a scalar multiplies, and height and width are forgotten
            return self._forget(self._affine(node, rows, "mul", known.step, None))
        other = node.args[1]
        constant = rows is first and not rows.transposed and not (other.operands & MAPS)
        if constant and rows.plain is not None and rows.base.columns is not None:
            columns = shapes[node].axes[1] if len(shapes[node].axes) == 2 else None
            return self._source(rows, Expr("matmul", (rows.plain, other)), columns)
        raise _NeedsRows(f"{_short(node)} multiplies single images with a value of other images")

    def _scattered(self, node: Expr, first: _Rows, second: _Rows) -> int:
        """(scale·x + shift)ᵀ(scale·x + shift), from the centred scatter and the mean map."""
        base = first.base
        if not self.scatter or base.over != "F":
            why = "of each class" if base.over != "F" else "of so many pixels"
            raise _NeedsRows(f"{_short(node)} is a scatter matrix {why}")
        scatter = self._statistic("scatter", base)
        for scale in (first.scale, second.scale):
            if scale is not None:
                if self.steps[scale].shape.axes:
                    raise _NeedsRows(f"{_short(node)} scales pixels before their scatter matrix")
                scatter = self._call("mul", scatter, scale)
        means = [self._mean(r, by_column=True) for r in (first, second)]
        count = self._statistic("count", base)
        return self._call("add", scatter, self._call("mul", count, self._call("outprod", *means)))

    # Rows from rows

    def _affine(self, node: Expr, rows: _Rows, name: str, by: int, embedded: Expr | None) -> _Rows:
        """rows (add, sub, mul or div) a value known after the pass."""
        plain = self._embed(rows, embedded)
        if name in ("add", "sub"):
            zero = self._number(0.0)
            moved = self._call(name, zero if rows.shift is None else rows.shift, by)
            return replace(rows, shift=moved, plain=plain)
        if name == "div":
            by = self._call("div", self._number(1.0), by)
        scale = by if rows.scale is None else self._call("mul", rows.scale, by)
        shift = None if rows.shift is None else self._call("mul", rows.shift, by)
        return replace(rows, scale=scale, shift=shift, plain=plain)

    def _times(self, node: Expr, first: _Rows, second: _Rows) -> _Rows:
        """Two rows multiplied: a source of its own, and a pair whose mean follows from second moments."""
        if (first.base.over, first.transposed, first.base.columns) != (
            second.base.over,
            second.transposed,
            second.base.columns,
        ):
            raise _NeedsRows(f"{_short(node)} pairs different images")
        source = None
        if first.plain is not None and second.plain is not None:
            same = first.plain == second.plain
            source = _simple(Expr("sq", (first.plain,)) if same else Expr("mul", (first.plain, second.plain)))
        pair = None
        if first.base == second.base and first.base.source is not None:
            pair = (first, second)
        if source is None and pair is None:
            raise _NeedsRows(f"{_short(node)} combines rows that are known only after the pass")
        base = _Base(first.base.over, source, pair, first.base.columns)
        return _Rows(base, None, None, source, first.transposed)

    def _source(self, rows: _Rows, source: Expr, columns: Axis | None) -> _Rows:
        transposed = rows.transposed and columns is not None
        return _Rows(_Base(rows.base.over, source, None, columns), None, None, source, transposed)

    def _forget(self, rows: _Rows) -> _Rows:
        """The same numbers without height and width."""
        return replace(
            rows, plain=None if rows.plain is None else Expr("tran", (Expr("tran", (rows.plain,)),))
        )

    def _plain(self, node: Expr, rows: _Rows) -> Expr:
        if rows.plain is None:
            raise _NeedsRows(f"{_short(node)} of rows that are known only after the pass")
        return rows.plain

    def _embed(self, rows: _Rows, embedded: Expr | None) -> Expr | None:
        """An operation on `F`, on these rows instead."""
        return None if embedded is None or rows.plain is None else embedded.replace(F, rows.plain)

    # Statistics of rows

    def _reduced(self, node: Expr, rows: _Rows) -> _Form:
        base = rows.base
        statistic, over = OPERATORS[node.name].base, node.name[-1]
        if rows.transposed and over == "s":
            if statistic == "count":
                assert base.columns is not None
                return _Known(self._add("length", (), SCALAR, LAYER, 0.0, Length(base.columns)))
            plain = self._plain(node, rows)
            return self._source(
                replace(rows, transposed=False), Expr(node.name, (Expr("tran", (plain,)),)), None
            )
        by_column = over == "s" and base.columns is not None
        if statistic == "count":
            return _Known(self._entries(base, by_column))
        if statistic == "mean":
            return _Known(self._mean(rows, by_column))
        if statistic == "sum":
            return _Known(self._call("mul", self._mean(rows, by_column), self._entries(base, by_column)))
        if statistic in ("var", "std"):
            variance = self._variance(node, rows, by_column)
            return _Known(variance if statistic == "var" else self._call("sqrt", variance))
        plain = self._plain(node, rows)
        whole = _Base(base.over, plain, None, base.columns)
        return _Known(self._statistic("pixel product" if by_column else "product", whole))

    def _entries(self, base: _Base, by_column: bool) -> int:
        """How many entries a mean is over."""
        count = self._statistic("count", base)
        if by_column or base.columns is None:
            return count
        return self._call("mul", count, self._add("length", (), SCALAR, LAYER, 0.0, Length(base.columns)))

    def _moment(self, kind: str, base: _Base, by_column: bool) -> int:
        return self._statistic(f"pixel {kind}" if by_column and base.columns is not None else kind, base)

    def _mean(self, rows: _Rows, by_column: bool) -> int:
        wide = by_column or self._is_wide(rows)
        mean = self._mean_at(rows, wide)
        return mean if by_column or not wide else self._call("mean_g", mean)

    def _base_mean(self, base: _Base, by_column: bool) -> int:
        if base.pair is None:
            return self._moment("mean", base, by_column)
        first, second = base.pair  # E[(ax+b)(cx+d)] = ac·var + (a·mean+b)(c·mean+d)
        wide = by_column or self._is_wide(first) or self._is_wide(second)
        spread = self._moment("var", first.base, wide)
        for scale in (first.scale, second.scale):
            if scale is not None:
                spread = self._call("mul", spread, scale)
        means = [self._mean_at(r, wide) for r in (first, second)]
        both = self._call("add", spread, self._call("mul", *means))
        return both if by_column or not wide else self._call("mean_g", both)

    def _mean_at(self, rows: _Rows, by_column: bool) -> int:
        mean = self._base_mean(rows.base, by_column)
        if rows.scale is not None:
            mean = self._call("mul", mean, rows.scale)
        return mean if rows.shift is None else self._call("add", mean, rows.shift)

    def _variance(self, node: Expr, rows: _Rows, by_column: bool) -> int:
        if rows.base.source is None:
            raise _NeedsRows(f"{_short(node)} of rows that are known only after the pass")
        wide = by_column or self._is_wide(rows)
        variance = self._moment("var", rows.base, wide)
        if rows.scale is not None:
            variance = self._call("mul", variance, self._call("sq", rows.scale))
        if by_column or not wide:
            return variance
        means = self._mean(rows, by_column=True)  # within columns and between them
        return self._call("add", self._call("mean_g", variance), self._call("var_g", means))

    def _is_wide(self, rows: _Rows) -> bool:
        """Whether columns are scaled or shifted differently, so that they must be told apart."""
        wide = any(s is not None and bool(self.steps[s].shape.axes) for s in (rows.scale, rows.shift))
        return wide or (rows.base.pair is not None and any(self._is_wide(r) for r in rows.base.pair))


def _simple(expr: Expr) -> Expr:
    """The same source with fewer steps, so that more functions share it."""
    name, arg = expr.name, expr.args[0]
    if name == "abs" and arg.name in ("abs", "sq", "sqrt"):
        return arg
    if name in ("sq", "sqrt") and arg.name == "abs":
        return _simple(Expr(name, arg.args))
    if (name, arg.name) in (("sqrt", "sq"), ("sq", "sqrt")):
        return _simple(Expr("abs", arg.args))
    return expr


def _short(node: Expr) -> str:
    text = str(node)
    return text if len(text) <= 60 else f"{text[:57]}…"
