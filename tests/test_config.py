"""Configuration files and overrides: what is read is what was meant, and what is wrong is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoprune import config
from evoprune.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Inner:
    epochs: int
    rate: float = 0.1
    kind: Literal["adam", "sgd"] = "adam"
    steps: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.epochs < 0:
            raise ConfigError(f"epochs must be 0 or more, got {self.epochs}")


@dataclasses.dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    images: int | Literal["all"] = "all"
    ratio: float | None = None
    fast: bool = False
    per_site: Mapping[str, float] = dataclasses.field(default_factory=dict)
    many: tuple[Inner, ...] = ()
    folder: Path | None = None


FULL = """
name = "x"
ratio = 1
per_site = {"blocks.0.conv" = 0.5}
folder = "a/b"
[inner]
epochs = 3
steps = [0.4, 1]
[[many]]
epochs = 1
[[many]]
epochs = 2
kind = "sgd"
"""


def build(text: str) -> Outer:
    return config.build(Outer, config.parse(text))


def test_a_full_table_becomes_the_dataclass() -> None:
    outer = build(FULL)
    assert outer == Outer(
        "x",
        Inner(3, steps=(0.4, 1.0)),
        ratio=1.0,
        per_site={"blocks.0.conv": 0.5},
        many=(Inner(1), Inner(2, kind="sgd")),
        folder=Path("a/b"),
    )
    assert isinstance(outer.ratio, float)
    assert isinstance(outer.inner.steps[1], float)


def test_a_dump_is_read_back_equal() -> None:
    assert build(config.dump(build(FULL))) == build(FULL)


texts = st.text(st.characters(codec="utf-8"), max_size=8)
plain = st.recursive(
    texts | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(texts, plain, max_size=4))
def test_any_table_survives_text(table: dict[str, object]) -> None:
    assert config.parse(config.dump(table)) == table


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('name="x"\n[inner]\nepoch=3', ["inner", "'epoch'", "Did you mean 'epochs'", "rate, kind, steps"]),
        ('name="x"\nsped=1\n[inner]\nepochs=3', ["'sped'", "name, inner, images"]),
        ("[inner]\nepochs=3", ["'name' is missing", "a text"]),
        ('name="x"\n[inner]\nepochs="3"', ["inner.epochs", "a whole number", "'3'"]),
        ('name="x"\n[inner]\nepochs=true', ["inner.epochs", "a whole number", "true"]),
        ('name="x"\n[inner]\nepochs=3\nkind="adm"', ["inner.kind", "'adam', 'sgd'", "did you mean 'adam'"]),
        ('name="x"\n[inner]\nepochs=3\nrate=nan', ["inner.rate", "finite"]),
        ('name="x"\n[inner]\nepochs=3\nsteps=[0.1,"b"]', ["inner.steps[1]", "a number", "'b'"]),
        ('name="x"\n[inner]\nepochs=-1', ["inner: epochs must be 0 or more"]),
        ('name="x"\nimages="some"\n[inner]\nepochs=1', ["images", "whole number or one of 'all'"]),
        ('name="x"\nratio="half"\n[inner]\nepochs=1', ["ratio: expected a number"]),
        ('name="x"\ninner=3', ["inner: expected a table, got 3"]),
        ('name="x"\nfast=1\n[inner]\nepochs=1', ["fast", "true or false"]),
        ('name="x"\n[inner]\nepochs=1\n[[many]]\nepochs=1\n[[many]]\nepcohs=1', ["many[1]", "'epochs'"]),
    ],
)
def test_what_is_wrong_is_named(text: str, says: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        build(text)
    for part in says:
        assert part in str(caught.value)


def test_a_file_that_is_absent_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml"):
        config.read(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("a = = 3")
    with pytest.raises(ConfigError, match=r"broken\.toml is not valid TOML.*line 1"):
        config.read(broken)


@pytest.mark.parametrize(
    ("assignment", "path", "value"),
    [
        ("inner.epochs=5", ("inner", "epochs"), 5),
        ("inner.rate = 1e-3", ("inner", "rate"), 1e-3),
        ("inner.kind=sgd", ("inner", "kind"), "sgd"),
        ('inner.kind="sgd"', ("inner", "kind"), "sgd"),
        ("fast=true", ("fast",), True),
        ("inner.steps=[0.5, 0.7]", ("inner", "steps"), [0.5, 0.7]),
        ('per_site."blocks.0.conv"=0.7', ("per_site", "blocks.0.conv"), 0.7),
        ("name=a=b", ("name",), "a=b"),
        ("name=2026-01-01", ("name",), "2026-01-01"),
        ("name=div(var_g(F-), 2)", ("name",), "div(var_g(F-), 2)"),
        ("many.1.epochs=9", ("many", 1, "epochs"), 9),
        ("new.table.key=1", ("new", "table", "key"), 1),
    ],
)
def test_an_override_sets_one_value_and_nothing_else(
    assignment: str, path: tuple[str | int, ...], value: object
) -> None:
    before = config.parse(FULL)
    after = config.override(before, [assignment])
    assert before == config.parse(FULL), "the table given is left alone"
    place: object = after
    for key in path:
        place = place[key]  # type: ignore[index]
    assert place == value
    assert type(place) is type(value)
    # Setting it back (or taking it out) gives the table as it was.
    others = {key for key in after if key != path[0]}
    assert all(after[key] == before[key] for key in others)


def test_an_override_without_a_value_gives_back_the_default() -> None:
    table = config.override(config.parse(FULL), ["ratio=", "inner.steps="])
    outer = config.build(Outer, table)
    assert outer.ratio is None
    assert outer.inner.steps == ()


def test_later_overrides_win_and_unknown_ones_are_refused() -> None:
    table = config.override(config.parse(FULL), ["inner.epochs=5", "inner.epochs=6"])
    assert config.build(Outer, table).inner.epochs == 6
    with pytest.raises(ConfigError, match=r"inner: there is no key 'epoch'.*'epochs'"):
        config.build(Outer, config.override(config.parse(FULL), ["inner.epoch=5"]))


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("inner.epochs", "recipe.epochs=5"),
        ("=5", "recipe.epochs=5"),
        ("a b=5", "is not a key"),
        ("name.x=5", "not a table"),
        ("many.2.epochs=5", "from 0 to 1"),
        ("many.first.epochs=5", "from 0 to 1"),
    ],
)
def test_an_override_that_cannot_be_carried_out_says_why(assignment: str, says: str) -> None:
    with pytest.raises(ConfigError, match="(?s)" + says):
        config.override(config.parse(FULL), [assignment])
