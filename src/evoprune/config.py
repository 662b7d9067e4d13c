"""Configuration: TOML on disk, frozen dataclasses in the program, and the way between them.

    text ─ parse ─▶ table ─ override ─▶ table ─ build ─▶ dataclass ─ to_table, dump ─▶ text

A *table* is what TOML parses to: a dict of plain values. `build` checks it against the type hints of a
dataclass; unknown keys are refused with the valid ones, wrong types with what was expected, and every
message starts with the dotted place. A dataclass checks its own ranges in `__post_init__` by raising
`ConfigError`, to which `build` adds the place.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import json
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from evoprune.errors import ConfigError

T = TypeVar("T")
Table = dict[str, Any]


def read(path: str | Path) -> Table:
    """The table in a TOML file."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration file {path} cannot be read: {error}") from None
    return parse(text, where=str(path))


def parse(text: str, *, where: str = "the configuration") -> Table:
    """The table in a TOML text; `where` names it in errors."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML: {error}") from None


def override(table: Mapping[str, Any], assignments: Iterable[str]) -> Table:
    """A copy of `table` with assignments like `recipe.epochs=5` carried out.

    The key is a TOML key (dots go inwards, quotes keep a dot, a number counts into an array); the value
    is a TOML value, or failing that a text. `key=` without a value takes the key out, which gives back its
    default.
    """
    result = copy.deepcopy(dict(table))
    for assignment in assignments:
        path, value = _assignment(assignment)
        place: Any = result
        for depth, key in enumerate(path[:-1]):
            place = _inside(place, key, assignment, ".".join(path[:depth]))
        _assign(place, path[-1], value, assignment)
    return result


def _assignment(text: str) -> tuple[list[str], Any]:
    """The key's parts and the value; the value is `_ABSENT` where there is none."""
    key, equals, value = _split_at_equals(text)
    if not equals or not key:
        raise ConfigError(f"expected an assignment like recipe.epochs=5, got {text!r}")
    try:
        nested: Any = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"in {text!r}, {key!r} is not a key; keys look like recipe.epochs, "
            f'with quotes around a part that has a dot: per_site."blocks.0".ratio ({error})'
        ) from None
    path: list[str] = []
    while isinstance(nested, dict):
        ((part, nested),) = nested.items()
        path.append(part)
    if not value:
        return path, _ABSENT
    try:
        parsed = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return path, value
    if set(parsed) != {"value"} or not _is_plain(parsed["value"]):
        return path, value
    return path, parsed["value"]


_ABSENT = object()


def _split_at_equals(text: str) -> tuple[str, str, str]:
    """Split at the first `=` outside quotes."""
    quote = ""
    for position, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter == "=":
            return text[:position].strip(), "=", text[position + 1 :].strip()
    return text.strip(), "", ""


def _is_plain(value: Any) -> bool:
    """Whether the value has only types that a configuration uses (dates are read as texts)."""
    if isinstance(value, dict):
        return all(_is_plain(entry) for entry in value.values())
    if isinstance(value, list):
        return all(_is_plain(entry) for entry in value)
    return isinstance(value, (str, bool, int, float))


def _inside(place: Any, key: str, assignment: str, path: str) -> Any:
    if isinstance(place, list):
        return place[_position(place, key, assignment, path)]
    if not isinstance(place, dict):
        raise ConfigError(f"cannot carry out {assignment!r}: {path!r} holds {place!r}, not a table")
    if key not in place:
        place[key] = {}
    return place[key]


def _position(place: list[Any], key: str, assignment: str, path: str) -> int:
    if not key.isdigit() or int(key) >= len(place):
        last = f"a number from 0 to {len(place) - 1}" if place else "nothing, it is empty"
        raise ConfigError(
            f"cannot carry out {assignment!r}: in the array {path!r}, expected {last}, got {key!r}"
        )
    return int(key)


def _assign(place: Any, key: str, value: Any, assignment: str) -> None:
    if isinstance(place, list):
        position = _position(place, key, assignment, key)
        if value is _ABSENT:
            del place[position]
        else:
            place[position] = value
    elif isinstance(place, dict):
        if value is _ABSENT:
            place.pop(key, None)
        else:
            place[key] = value
    else:
        raise ConfigError(f"cannot carry out {assignment!r}: {place!r} is not a table, it has no {key!r}")


def build(kind: type[T], table: Mapping[str, Any], *, where: str = "") -> T:
    """An instance of the dataclass `kind` from a table, checked all the way down."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where or 'the configuration'}: expected a table, got {_described(table)}")
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}  # type: ignore[arg-type]
    for key in table:
        if key not in fields:
            raise ConfigError(unknown_key(key, fields, where=where))
    hints = typing.get_type_hints(kind)
    values = {}
    for name, field in fields.items():
        if name in table:
            values[name] = fit(hints[name], table[name], f"{where}.{name}" if where else name)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(
                f"{where or 'the configuration'}: {name!r} is missing, "
                f"expected {_named(hints[name])}; the keys here are {', '.join(fields)}"
            )
    try:
        return kind(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}" if where else str(error)) from None


def unknown_key(key: str, known: Iterable[str], *, where: str = "", what: str = "key") -> str:
    """The message for a name that does not exist: the nearest one and all there are."""
    known = list(known)
    close = difflib.get_close_matches(key, known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    place = f"{where}: " if where else ""
    return f"{place}there is no {what} {key!r}.{hint} There is: {', '.join(known) or 'nothing'}"


def fit(hint: Any, value: Any, where: str) -> Any:
    """`value` as the type hint wants it, or a `ConfigError` that says what was expected at `where`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _fit_union(arguments, hint, value, where)
    if origin is typing.Literal:
        if value not in arguments or isinstance(value, bool):
            close = difflib.get_close_matches(str(value), [str(choice) for choice in arguments], n=1)
            hint_text = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigError(f"{where}: expected {_named(hint)}, got {value!r}{hint_text}")
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{where}: expected {_named(hint)}, got {_described(value)}")
        if len(arguments) == 2 and arguments[1] is ...:
            return tuple(fit(arguments[0], entry, f"{where}[{i}]") for i, entry in enumerate(value))
        if len(value) != len(arguments):
            raise ConfigError(f"{where}: expected {len(arguments)} entries, got {len(value)}")
        return tuple(
            fit(kind, entry, f"{where}[{i}]")
            for i, (kind, entry) in enumerate(zip(arguments, value, strict=True))
        )
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where}: expected {_named(hint)}, got {_described(value)}")
        return {str(key): fit(arguments[1], entry, f"{where}.{key}") for key, entry in value.items()}
    if dataclasses.is_dataclass(hint):
        if isinstance(value, typing.cast(type, hint)):
            return value
        return build(typing.cast("type[Any]", hint), value, where=where)
    return _fit_scalar(hint, value, where)


def _fit_union(choices: tuple[Any, ...], hint: Any, value: Any, where: str) -> Any:
    if value is None and type(None) in choices:
        return None
    problems = []
    for choice in choices:
        if choice is type(None):
            continue
        try:
            return fit(choice, value, where)
        except ConfigError as error:
            problems.append(error)
    if len(problems) == 1:  # optional: its own message says more than the union's
        raise problems[0]
    raise ConfigError(f"{where}: expected {_named(hint)}, got {_described(value)}")


def _fit_scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is Any:
        return value
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise ConfigError(f"{where}: expected a finite number, got {value}")
        return float(value)
    if hint is Path and isinstance(value, (str, Path)):
        return Path(value)
    if isinstance(hint, type) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise ConfigError(f"{where}: expected {_named(hint)}, got {_described(value)}")


def _named(hint: Any) -> str:
    """A type hint in the words of a person who writes TOML."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_named(choice) for choice in arguments if choice is not type(None))
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(choice) for choice in arguments)
    if origin is tuple:
        return f"an array, each entry {_named(arguments[0])}" if arguments else "an array"
    if dataclasses.is_dataclass(hint) or (origin is not None and issubclass(origin, Mapping)):
        return "a table"
    words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", Path: "a path"}
    return words.get(hint, str(hint))


def _described(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)


def to_table(value: Any) -> Any:
    """A dataclass as a table that `build` reads back to an equal one; values of None are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = [
            (field.name, getattr(value, field.name)) for field in dataclasses.fields(value) if field.init
        ]
        return {name: to_table(entry) for name, entry in pairs if entry is not None}
    if isinstance(value, Mapping):
        return {str(key): to_table(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, (list, tuple)):
        return [to_table(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value


def dump(value: Any) -> str:
    """A dataclass or a table as TOML text."""
    lines: list[str] = []
    _dump_table(to_table(value), (), lines)
    return "\n".join(lines).strip("\n") + "\n"


def _dump_table(table: Table, path: tuple[str, ...], lines: list[str]) -> None:
    inner = {key: entry for key, entry in table.items() if isinstance(entry, dict) or _is_tables(entry)}
    for key, entry in table.items():
        if key not in inner:
            lines.append(f"{_key(key)} = {_value(entry)}")
    for key, entry in inner.items():
        name = ".".join(_key(part) for part in (*path, key))
        if isinstance(entry, dict):
            lines += ["", f"[{name}]"]
            _dump_table(entry, (*path, key), lines)
        else:
            for table_of_array in entry:
                lines += ["", f"[[{name}]]"]
                _dump_table(table_of_array, (*path, key), lines)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(entry, dict) for entry in value)


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if bare else _text(key)


def _text(value: str) -> str:
    # JSON's escapes are TOML's, but for the one control character that JSON leaves bare.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, list):
        return "[" + ", ".join(_value(entry) for entry in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_value(entry)}" for key, entry in value.items()) + "}"
    raise ConfigError(f"a configuration holds texts, numbers, arrays and tables, not {value!r}")
