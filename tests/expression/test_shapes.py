"""Symbolic axes: canonical forms, and sizes that agree with arithmetic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from evoprune.expression.shapes import Axis, axis, longest, product, shortest

SYMBOLS = ["N", "N+", "P", "filters"]
sizes = st.fixed_dictionaries({symbol: st.integers(1, 9) for symbol in SYMBOLS})


def axes() -> st.SearchStrategy[tuple[Axis, object]]:
    """An axis beside the arithmetic it stands for, as a nested tuple."""
    leaf = st.sampled_from([*SYMBOLS, 1, 4]).map(lambda symbol: (axis(symbol), symbol))
    rules = {"max": longest, "min": shortest, "mul": product}

    def grow(children: st.SearchStrategy[tuple[Axis, object]]) -> st.SearchStrategy[tuple[Axis, object]]:
        return st.tuples(st.sampled_from(sorted(rules)), children, children).map(
            lambda t: (rules[t[0]](t[1][0], t[2][0]), (t[0], t[1][1], t[2][1]))
        )

    return st.recursive(leaf, grow, max_leaves=6)


def arithmetic(term: object, values: dict[str, int]) -> int:
    if isinstance(term, int):
        return term
    if isinstance(term, str):
        return values[term]
    name, a, b = term
    left, right = arithmetic(a, values), arithmetic(b, values)
    return {"max": max(left, right), "min": min(left, right), "mul": left * right}[name]


@given(axes(), sizes)
def test_an_axis_is_as_long_as_its_arithmetic(pair: tuple[Axis, object], values: dict[str, int]) -> None:
    found, term = pair
    assert found.size(values) == arithmetic(term, values)


@given(axes(), axes(), axes())
def test_equal_lengths_have_one_form(
    a: tuple[Axis, object], b: tuple[Axis, object], c: tuple[Axis, object]
) -> None:
    x, y, z = a[0], b[0], c[0]
    for combine in (longest, shortest, product):
        assert combine(x, y) == combine(y, x)
        assert combine(combine(x, y), z) == combine(x, combine(y, z))
    assert longest(x, x) == shortest(x, x) == x
    assert longest(x, shortest(x, y)) == shortest(x, longest(x, y)) == x
    assert product(x, longest(y, z)) == longest(product(x, y), product(x, z))
    assert product(x, axis(1)) == longest(x, axis(1)) == x
    assert shortest(x, axis(1)) == axis(1)


def test_equal_numbers_never_count() -> None:
    assert axis("filters") != axis("weights")
    assert axis(4) != axis("P")
    assert longest(axis("N+"), axis("N-")) != axis("N")
    assert longest(axis(4), axis(1)) == axis(4)


def test_an_axis_is_readable() -> None:
    assert str(longest(axis("N+"), axis("N-"))) == "max(N+, N-)"
    assert str(product(axis("P"), product(axis(4), axis(4)))) == "16·P"
