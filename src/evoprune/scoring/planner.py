"""How the rows of `F` are followed up the tree of an expression.

While each row depends on its own image alone, it is a *source*, such as `F`, `sqrt(F)` or `tr(F)`;
scaled and shifted by values that are known only after the pass (`sub(F, mean_s(F))`) it stays one,
because the moments of a·x + b follow from those of x. A reduction of a source is a statistic. What
mixes the rows of different images in another way (`rbf(F+, F-)`, `geo(F)`) needs the rows themselves.

The same holds along the columns: a map that is the same for all classes, scaled and shifted for each
class and then summed up, is summed up first, so that no class has a map of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from evoprune.expression.check import infer
from evoprune.expression.shapes import SCALAR, Axis, Shape
from evoprune.expression.tree import Expr
from evoprune.expression.vocabulary import OPERATORS
from evoprune.scoring.plan import F, Length, Number, Statistic
from evoprune.scoring.steps import CHANNEL, CLASS, LAYER, MAPS, SCOPE_OF_OPERAND, Step, rho_of


class NeedsRows(Exception):
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


class Planner:
    """Builds steps; equal steps are built once, over all expressions."""

    def __init__(self, scatter: bool, class_maps: bool, class_scatter: bool) -> None:
        self.scatter = scatter
        self.class_maps = class_maps
        self.class_scatter = class_scatter
        self.steps: list[Step] = []
        self._places: dict[object, int] = {}
        self._forms: dict[Expr, _Form | NeedsRows] = {}

    def value(self, expr: Expr) -> int:
        """The step that computes a scalar expression; raises NeedsRows."""
        shapes = infer(expr)
        for node in expr.distinct():
            if node not in self._forms:
                try:
                    self._forms[node] = self._as_declared(self._form(node, shapes), shapes[node])
                except NeedsRows as reason:
                    self._forms[node] = reason
            form = self._forms[node]
            if isinstance(form, NeedsRows):
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
        summed = self._summed_first(name, args[0])
        if summed is not None:
            return summed
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
            if base.over != "F" and not self.class_maps:
                raise NeedsRows(f"a {kind} of {source} would be kept for each of very many classes")
            axes = (base.columns,)
        elif kind == "scatter" and base.columns is not None:
            axes = (base.columns, base.columns)
        scope = CHANNEL if base.over == "F" else CLASS
        keeps = infer(source)[source].maps and len(axes) == 1
        return self._add(kind, (), Shape(axes, keeps), scope, 0.0, Statistic(kind, source, base.over))

    # Along the columns

    def _summed_first(self, name: str, arg: int) -> int | None:
        """The reduction of a vector that is the same for all classes but for its scale and shift."""
        statistic, whole = OPERATORS[name].base, name.endswith(("_g", "_s"))
        step = self.steps[arg]
        if not whole or step.scope != CLASS or len(step.shape.axes) != 1 or step.leaf is not None:
            return None
        base, scale, shift = self._affine_of(arg)
        if statistic in ("var", "std") and self.steps[base].scope < CLASS:
            variance = self._call("var_g", base)
            variance = variance if scale is None else self._call("mul", variance, self._call("sq", scale))
            return variance if statistic == "var" else self._call("sqrt", variance)
        if statistic not in ("mean", "sum"):
            return None
        mean = self._mean_of_columns(base)
        if mean is None:
            return None
        mean = self._scaled(mean, scale, shift)
        if statistic == "mean":
            return mean
        length = self._add("length", (), SCALAR, LAYER, 0.0, Length(step.shape.axes[0]))
        return self._call("mul", mean, length)

    def _mean_of_columns(self, base: int) -> int | None:
        """The mean of a vector of the channel, or of the square of one that is scaled and shifted."""
        step = self.steps[base]
        if step.scope < CLASS:
            return self._call("mean_g", base)
        if step.name != "sq":
            return None
        vector, scale, shift = self._affine_of(step.args[0])
        if self.steps[vector].scope == CLASS:
            return None
        spread = self._call("var_g", vector)
        spread = spread if scale is None else self._call("mul", spread, self._call("sq", scale))
        mean = self._scaled(self._call("mean_g", vector), scale, shift)
        return self._call("add", spread, self._call("sq", mean))

    def _scaled(self, value: int, scale: int | None, shift: int | None) -> int:
        value = value if scale is None else self._call("mul", value, scale)
        return value if shift is None else self._call("add", value, shift)

    def _affine_of(self, step: int) -> tuple[int, int | None, int | None]:
        """A vector as scale · base + shift, with scalars that differ between classes taken off."""
        scale: int | None = None
        shift: int | None = None
        while (at := self.steps[step]).scope == CLASS and at.name in ("add", "sub", "mul", "div", "ridge"):
            vectors = [arg for arg in at.args if self.steps[arg].shape.axes]
            scalars = [arg for arg in at.args if not self.steps[arg].shape.axes]
            if len(vectors) != 1 or (at.name == "div" and vectors[0] != at.args[0]):
                break
            by = scalars[0] if scalars else self._number(at.rho)
            factor = offset = None  # this step is factor · vector + offset
            if at.name == "mul":
                factor = by
            elif at.name == "div":
                factor = self._call("div", self._number(1.0), by)
            elif at.name == "sub" and vectors[0] == at.args[0]:
                offset = self._call("sub", self._number(0.0), by)
            else:
                offset = by
                factor = self._number(-1.0) if at.name == "sub" else None
            if offset is not None:
                offset = offset if scale is None else self._call("mul", offset, scale)
                shift = offset if shift is None else self._call("add", offset, shift)
            if factor is not None:
                scale = factor if scale is None else self._call("mul", factor, scale)
            step = vectors[0]
        return step, scale, shift

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
            summed = self._summed_first(node.name, args[0])
            if summed is not None:
                return _Known(summed)
            return _Known(self._add(node.name, args, shapes[node], scope, rho_of(node, shapes), None))
        return self._of_rows(node, [form for form in forms if not isinstance(form, NeedsRows)], shapes)

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
        raise NeedsRows(f"{_short(node)} reads the rows of single images")

    def _unary(self, node: Expr, rows: _Rows, shapes: dict[Expr, Shape]) -> _Form:
        name = node.name
        vector = rows.base.columns is None
        if name == "tran":
            return rows if vector else replace(rows, transposed=not rows.transposed)
        if name == "ridge":
            if shapes[node.args[0]].is_square:
                raise NeedsRows(f"{_short(node)} adds to single images")
            return self._affine(node, rows, "add", self._number(node.rho or 0.0), Expr(name, (F,), node.rho))
        if name == "sq":
            return self._times(node, rows, rows)
        if name in ("abs", "sqrt") and rows.plain is None and rows.scale is not None:
            return self._of_scaled(node, rows, rows.scale)
        plain = self._plain(node, rows)
        if name in ("abs", "sqrt") or (name == "inv" and vector):
            return self._source(rows, simplified(Expr(name, (plain,))), rows.base.columns)
        if name == "tr" and not rows.transposed and shapes[node.args[0]].maps and not vector:
            return self._source(rows, Expr(name, (plain,)), None)
        if name == "slice" and rows.transposed:
            return self._source(replace(rows, transposed=False), Expr(name, (Expr("tran", (plain,)),)), None)
        raise NeedsRows(f"{_short(node)} reads the rows of single images")

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
        raise NeedsRows(f"{_short(node)} combines single images with a value of other images")

    def _both_rows(self, node: Expr, first: _Rows, second: _Rows) -> _Rows:
        same_rows = (
            first.base.over == second.base.over
            and first.transposed == second.transposed
            and first.base.columns == second.base.columns
        )
        if not same_rows:
            raise NeedsRows(f"{_short(node)} pairs different images")
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
            raise NeedsRows(f"{_short(node)} combines rows that are known only after the pass")
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
            raise NeedsRows(f"{_short(node)} pairs different images")
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
        raise NeedsRows(f"{_short(node)} multiplies single images with a value of other images")

    def _scattered(self, node: Expr, first: _Rows, second: _Rows) -> int:
        """(scale·x + shift)ᵀ(scale·x + shift), from the centred scatter and the mean map."""
        base = first.base
        if not self.scatter:
            raise NeedsRows(f"{_short(node)} is a scatter matrix of so many pixels")
        if base.over != "F" and not self.class_scatter:
            raise NeedsRows(f"{_short(node)} is a scatter matrix for each of so many classes")
        scatter = self._statistic("scatter", base)
        for scale in (first.scale, second.scale):
            if scale is not None:
                if self.steps[scale].shape.axes:
                    raise NeedsRows(f"{_short(node)} scales pixels before their scatter matrix")
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
            raise NeedsRows(f"{_short(node)} pairs different images")
        source = None
        if first.plain is not None and second.plain is not None:
            same = first.plain == second.plain
            source = simplified(
                Expr("sq", (first.plain,)) if same else Expr("mul", (first.plain, second.plain))
            )
        pair = None
        if first.base == second.base and first.base.source is not None:
            pair = (first, second)
        if source is None and pair is None:
            raise NeedsRows(f"{_short(node)} combines rows that are known only after the pass")
        base = _Base(first.base.over, source, pair, first.base.columns)
        return _Rows(base, None, None, source, first.transposed)

    def _of_scaled(self, node: Expr, rows: _Rows, scale: int) -> _Rows:
        """`abs` or `sqrt` of rows scaled by what is known after the pass: the scale comes out."""
        if rows.base.source is None or rows.shift is not None:
            raise NeedsRows(f"{_short(node)} of rows that are known only after the pass")
        source = simplified(Expr(node.name, (rows.base.source,)))
        bare = self._source(rows, source, rows.base.columns)
        return replace(bare, scale=self._call(node.name, scale), plain=None)

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
            raise NeedsRows(f"{_short(node)} of rows that are known only after the pass")
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
            raise NeedsRows(f"{_short(node)} of rows that are known only after the pass")
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


def simplified(expr: Expr) -> Expr:
    """The same source with fewer steps, so that more functions share it."""
    if not expr.args:
        return expr
    name, arg = expr.name, expr.args[0]
    if name == "abs" and arg.name in ("abs", "sq", "sqrt"):
        return arg
    if name in ("sq", "sqrt") and arg.name == "abs":
        return simplified(Expr(name, arg.args))
    if (name, arg.name) in (("sqrt", "sq"), ("sq", "sqrt")):
        return simplified(Expr("abs", arg.args))
    return expr


def _short(node: Expr) -> str:
    text = str(node)
    return text if len(text) <= 60 else f"{text[:57]}…"
