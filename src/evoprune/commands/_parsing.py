"""From the words of a command line to a call that is ready to be made, by tyro.

What all commands share lies here: how help reads, which words a wrong value is answered with, and the two
options that every command has.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import shutil
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from evoprune import config
from evoprune.errors import ConfigError

MARKERS = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone)

Flag = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]
"""An option that is given or not."""


def plain(metavar: str | None = None) -> Any:
    """An option whose default says nothing to a reader; `metavar` stands for its value in the help."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


def print_json(value: Any) -> None:
    """For programs: nothing else is on standard output then. Paths are texts, NaN and infinities null."""
    print(json.dumps(_json(value), indent=2, ensure_ascii=False, allow_nan=False))


def _json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _json(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value


@dataclass(frozen=True)
class Voice:
    """How much is said on standard error; results go to standard output."""

    quiet: Flag = False
    """Say nothing but errors."""
    verbose: Flag = False
    """Also say versions and seconds, and with an error its traceback."""


@dataclass(frozen=True)
class Call:
    """A command with all its arguments."""

    voice: Voice
    run: Callable[[], None]


def parse(command: str, module: str, arguments: Sequence[str]) -> Call:
    """The call that the arguments describe; help and wrong usage end in SystemExit, as tyro does it."""
    main = import_module(f"evoprune.commands.{module}").main
    about, examples = told(main, width=min(shutil.get_terminal_size().columns, 100))
    asks = any(word in ("-h", "--help") for word in arguments)
    if asks:
        print(about, end="\n\n")
    try:
        call: Call = tyro.cli(
            _deferred(main),
            prog=f"evoprune {command}",
            description="",
            args=list(arguments),
            config=MARKERS,
            registry=_values(),
        )
    except SystemExit:
        if asks:
            print(f"\n{examples}")
        raise
    return call


def told(main: Callable[..., None], width: int) -> tuple[str, str]:
    """What a command's docstring says it does, and its examples."""
    text = inspect.getdoc(main) or ""
    about, _, examples = text.partition("\nExamples:\n")
    paragraphs = about.partition("\nArgs:\n")[0].strip().split("\n\n")
    shown = "\n\n".join(textwrap.fill(" ".join(each.split()), width) for each in paragraphs)
    return shown, "examples:\n" + textwrap.indent(textwrap.dedent(examples).strip("\n"), "  ")


def _deferred(main: Callable[..., None]) -> Callable[..., Call]:
    """A function with the parameters of `main` and those of the voice, which only notes its arguments."""
    signature = inspect.signature(main, eval_str=True)
    voice = inspect.Parameter("common", inspect.Parameter.KEYWORD_ONLY, annotation=Voice, default=Voice())

    def note(*args: Any, common: Voice, **kwargs: Any) -> Call:
        return Call(common, functools.partial(main, *args, **kwargs))

    note.__doc__ = main.__doc__
    note.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
    note.__annotations__ |= {"common": Voice, "return": Call}
    note.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), voice], return_annotation=Call
    )
    return note


def _values() -> ConstructorRegistry:
    """How words become values: as in a configuration, and wrong ones are answered as there."""
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def value(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        kinds = [kind for kind in _alternatives(info.type) if kind is not type(None)]
        if not kinds or not all(kind in _READ or typing.get_origin(kind) is typing.Literal for kind in kinds):
            return None
        if kinds in ([str], [Path], [bool]) and info.type in kinds:
            return None
        wanted = functools.reduce(lambda left, right: left | right, kinds)
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="|".join(map(_metavar, kinds)),
            instance_from_str=lambda words: _read(wanted, kinds, words[0]),
            is_instance=lambda instance: True,
            str_from_instance=lambda instance: [str(instance)],
        )

    return registry


_READ: dict[Any, Callable[[str], Any]] = {
    int: int,
    float: float,
    bool: lambda word: {"true": True, "false": False}.get(word.lower(), word),
    str: str,
    Path: Path,
}


def _alternatives(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def _metavar(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        choices = typing.get_args(kind)
        return str(choices[0]) if len(choices) == 1 else "{" + ",".join(map(str, choices)) + "}"
    return {int: "INT", float: "FLOAT", bool: "{true,false}", str: "STR", Path: "PATH"}[kind]


def _read(wanted: Any, kinds: Sequence[Any], word: str) -> Any:
    value: Any = word
    for kind in kinds:
        try:
            value = _READ.get(kind, str)(word)
            return config.fit(kind, value, "")
        except ValueError:  # a ConfigError is one, too
            continue
    try:
        return config.fit(wanted, value, "")
    except ConfigError as error:
        raise ValueError(str(error).removeprefix(": ")) from None
