"""Write docs/api.md from signatures and docstrings: `python docs/_api.py`."""

import ast
import dataclasses
import inspect
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import evoprune
from evoprune import errors
from evoprune.evolution.comparison import Comparison
from evoprune.evolution.search import Generation
from evoprune.integrations.sklearn import FunctionSelector
from evoprune.integrations.torch_pruning import FunctionImportance, customized_pruners
from evoprune.pruning.cost import Cost
from evoprune.tasks.results import Kept, Result

TARGET = Path(__file__).parent / "api.md"

# heading → what it is about, and the names
GROUPS: dict[str, tuple[str, list[str]]] = {
    "Functions as text": ("See [the language](language.md).", ["parse", "Expr", "check", "functions"]),
    "Scoring": (
        "See [scoring](scoring.md).",
        ["score", "Scores", "score_arrays", "gather", "Statistics", "plan"],
    ),
    "Pruning": (
        "See [pruning your network](pruning-your-network.md).",
        ["prune", "Pruned", "load_pruned", "sites", "Site", "Surgeon", "cost"],
    ),
    "Tasks": ("See [tasks](tasks.md).", ["Task"]),
    "Evolution": (
        "See [evolving your own functions](evolving-your-own-functions.md).",
        ["evolve", "resume", "Run"],
    ),
    "Errors": ("", ["EvopruneError"]),
}

RETURNED = [Cost, Generation, Comparison, Kept, Result]

INTEGRATIONS = {
    "evoprune.integrations.torch_pruning": [FunctionImportance, customized_pruners],
    "evoprune.integrations.sklearn": [FunctionSelector],
}


def page() -> str:
    """The page as Markdown."""
    told = sorted(name for _, names in GROUPS.values() for name in names)
    assert told == sorted(evoprune.__all__), set(told) ^ set(evoprune.__all__)
    lines = [
        "# API",
        "",
        "Generated from signatures and docstrings by `make docs`. All names of `evoprune` are here; they are",
        "loaded when first used.",
    ]
    for title, (about, names) in GROUPS.items():
        lines += ["", f"## {title}", *(["", about] if about else [])]
        for name in names:
            lines += ["", f"### evoprune.{name}", "", *described(name, getattr(evoprune, name))]
            if name == "EvopruneError":
                lines += ["", "```text", *(errors.__doc__ or "").strip().splitlines(), "```"]
    lines += ["", "## What these return"]
    for value in RETURNED:
        lines += ["", f"### {value.__module__}.{value.__name__}", "", *described(value.__name__, value)]
    lines += ["", "## Integrations"]
    for module, values in INTEGRATIONS.items():
        for value in values:
            lines += ["", f"### {module}.{value.__name__}", "", *described(value.__name__, value)]
    return "\n".join(lines) + "\n"


def described(name: str, value: Any) -> Iterator[str]:
    """A block of Python that shows a name as its author would."""
    yield "```python"
    if inspect.isclass(value):
        yield from shown_class(value)
    elif callable(value):
        yield from shown_function(name, value)
    else:
        yield f"{name}: {type(value).__name__}"
        yield from documented(type(value).__doc__, "")
    yield "```"


def shown_class(kind: type) -> Iterator[str]:
    """Its docstring, then what is public on it."""
    bases = [base.__name__ for base in kind.__bases__ if base is not object]
    yield f"class {kind.__name__}" + (f"({', '.join(bases)})" if bases else "") + ":"
    yield from documented(kind.__doc__, "    ")
    if fields := list(shown_fields(kind)):
        yield ""
        yield from fields
    if "__init__" in vars(kind) and not (dataclasses.is_dataclass(kind) and _made(kind)):
        yield ""
        yield from shown_function("__init__", vars(kind)["__init__"], "    ")
    for name, value in vars(kind).items():
        if name.startswith("_"):
            continue
        if isinstance(value, (classmethod, staticmethod)):
            yield ""
            yield f"    @{type(value).__name__}"
            yield from shown_function(name, value.__func__, "    ")
        elif inspect.isfunction(value):
            yield ""
            yield from shown_function(name, value, "    ")
        elif (getter := getattr(value, "fget", None) or getattr(value, "func", None)) is not None:
            yield ""
            yield "    @property"
            yield from shown_function(name, getter, "    ")


def _made(kind: type) -> bool:
    """Whether `dataclass` made the `__init__`: its fields say all."""
    return "__init__" not in {each.name for each in _body(kind) if isinstance(each, ast.FunctionDef)}


def _body(kind: type) -> list[ast.stmt]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    return tree.body


def shown_fields(kind: type) -> Iterator[str]:
    """Annotated names of a class with the text below each."""
    body = _body(kind)
    for each, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(each, ast.AnnAssign) and not ast.unparse(each.target).startswith("_"):
            value = (
                ""
                if each.value is None or isinstance(each.value, ast.Call)
                else f" = {ast.unparse(each.value)}"
            )
            yield f"    {ast.unparse(each.target)}: {ast.unparse(each.annotation)}{value}"
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                yield from documented(str(following.value.value), "    ")


def shown_function(name: str, function: Any, indent: str = "") -> Iterator[str]:
    """Its signature, broken where it is long, and its docstring."""
    signature = inspect.signature(function)
    parts = [_parameter(parameter) for parameter in signature.parameters.values()]
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        parts.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    if inspect.Parameter.POSITIONAL_ONLY in kinds:
        parts.insert(kinds.count(inspect.Parameter.POSITIONAL_ONLY), "/")
    returns = signature.return_annotation
    end = "" if returns is signature.empty else f" -> {_annotation(returns)}"
    line = f"{indent}def {name}({', '.join(parts)}){end}:"
    if len(line) <= 100:
        yield line
    else:
        yield f"{indent}def {name}("
        yield from (f"{indent}    {part}," for part in parts)
        yield f"{indent}){end}:"
    yield from documented(function.__doc__, f"{indent}    ")


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    text = stars.get(parameter.kind, "") + parameter.name
    if parameter.annotation is not parameter.empty:
        text += f": {_annotation(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return text
    default = json.dumps(parameter.default) if isinstance(parameter.default, str) else repr(parameter.default)
    return f"{text} = {default}"


def _annotation(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return text.replace("'", '"')


def documented(text: str | None, indent: str) -> list[str]:
    """A docstring as it stands in the source."""
    if not text:
        return [f"{indent}..."]
    lines = inspect.cleandoc(text).splitlines()
    if len(lines) == 1:
        return [f'{indent}"""{lines[0]}"""']
    return textwrap.indent("\n".join([f'"""{lines[0]}', *lines[1:], '"""']), indent).splitlines()


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
