"""`evoprune functions`: the library, or one function of it or of your own."""

from __future__ import annotations

from typing import Annotated

import tyro

from evoprune.commands._parsing import Flag, plain, print_json
from evoprune.commands._showing import listing
from evoprune.errors import ConfigError
from evoprune.expression.library import functions, resolve


def main(
    function: Annotated[str, tyro.conf.Positional, plain("[FUNCTION]")] = "",
    /,
    run: Annotated[str | None, plain("RUN")] = None,
    json: Flag = False,
) -> None:
    """List the pruning functions that come with the package, or those a run has bred, or show one.

    Args:
        function: A name of the library, or the text of a function of your own in quotes; none lists all.
        run: List the hall of fame of this run (its name, or the path of its folder) instead.
        json: Print JSON: a list, of one where a function is given.

    Examples:
        evoprune functions
        evoprune functions xi_star
        evoprune functions "div(var_g(F-), ridge(var_g(F+), 0.05))"
        evoprune functions --run demo-1
        evoprune functions --json
    """
    if run is not None and function:
        raise ConfigError("give a FUNCTION or --run, not both")
    if run is not None:
        from evoprune.evolution.summary import bred_functions, run_functions

        if json:
            columns = ("label", "text", "fitness")
            print_json([dict(zip(columns, row, strict=True)) for row in run_functions(run)])
        else:
            print(bred_functions(run))
    elif json:
        names = [function] if function else list(functions)
        print_json([describe(name) for name in names])
    else:
        print(card(function) if function else table())


def describe(function: str) -> dict[str, object]:
    """What there is to say about a function, as plain values."""
    found = resolve(function)
    facts: dict[str, object] = {
        "name": found.name,
        "group": found.group,
        "text": found.text,
        "latex": found.latex,
        "rewards": found.rewards,
        "source": found.source,
    }
    if found.expr is not None:
        facts |= {
            "operands": operands(function),
            "label_aware": found.expr.is_label_aware,
            "order_dependent": found.expr.order_dependent,
            "size": found.expr.size,
            "depth": found.expr.depth,
        }
    return facts


def operands(function: str) -> list[str]:
    """The operands a function reads, in the vocabulary's order."""
    from evoprune.expression.vocabulary import OPERANDS

    expr = resolve(function).expr
    return [] if expr is None else [name for name in OPERANDS if name in expr.operands]


def table() -> str:
    """The library, a line per function."""
    titles = {
        "soap": "SOAP: the hand-made functions of the paper",
        "evolved": "Published evolved functions",
        "baseline": "Plain baselines",
    }
    names = max(map(len, functions))
    lines = []
    for group, title in titles.items():
        rows = {name: each.rewards for name, each in functions.items() if each.group == group}
        lines += [title, listing(rows, names=names, indent="  "), ""]
    lines.append("`evoprune functions NAME` shows the text, the formula and the tree.")
    return "\n".join(lines)


def card(function: str) -> str:
    """One function: text, LaTeX, tree, operands, what it rewards."""
    from evoprune.expression.check import check
    from evoprune.expression.order import order_dependence
    from evoprune.expression.vocabulary import OPERANDS

    found = resolve(function)
    lines = [] if found.name == found.text else [found.name, ""]
    rows = {"rewards": found.rewards, "from": found.source, "text": found.text, "LaTeX": found.latex}
    lines += [f"{name + ':':<10}{value}" for name, value in rows.items() if value]
    if found.expr is None:
        return "\n".join(lines)
    shape = check(found.expr)
    lines.append(
        f"{'value:':<10}{shape}" + ("" if not shape.axes else ", which is no score: a scalar is needed")
    )
    lines.append(
        f"{'size:':<10}{found.expr.size} node{'s' * (found.expr.size > 1)}, depth {found.expr.depth}"
    )
    classes = "each class against the rest, averaged" if found.expr.is_label_aware else "needs no labels"
    lines.append(f"{'labels:':<10}{classes}")
    if dependent := order_dependence(found.expr):
        lines.append(f"{'order:':<10}depends on the order of rows: {dependent[1]}, in {dependent[0]}")
    lines.append("operands:")
    lines += [f"  {name:<4} {OPERANDS[name].doc}" for name in operands(function)]
    lines += ["tree:", *(f"  {line}" for line in found.expr.tree().splitlines())]
    return "\n".join(lines)
