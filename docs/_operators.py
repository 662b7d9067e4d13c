"""Write docs/operators.md from the vocabulary: `python docs/_operators.py`."""

from pathlib import Path

from evoprune.expression.vocabulary import GROUPS, OPERANDS, OPERATORS

TARGET = Path(__file__).parent / "operators.md"


def page() -> str:
    """The page as Markdown."""
    bases = {operator.base for operator in OPERATORS.values()}
    lines = [
        "# Operands and operators",
        "",
        "Generated from `src/evoprune/expression/vocabulary.py` by `make docs`.",
        "",
        f"{len(OPERANDS)} operands and {len(bases)} operators, the statistics in two forms: `_g` over all",
        "entries, `_s` over the rows. All operators are written as calls, such as",
        "`div(var_g(F-), ridge(var_g(F+), 0.05))`.",
        "",
        "## Operands",
        "",
        "| name | value | formula | meaning |",
        "|---|---|---|---|",
    ]
    for operand in OPERANDS.values():
        shape = str(operand.shape)
        lines.append(f"| `{operand.name}` | {shape} | ${operand.latex}$ | {operand.doc} |")
    for group in GROUPS:
        lines += [
            "",
            f"## {group.capitalize()} operators",
            "",
            "| name | formula | meaning |",
            "|---|---|---|",
        ]
        for operator in OPERATORS.values():
            if operator.group == group:
                formula = operator.latex.format("x", "y", rho=r"\rho").replace("|", r"\vert ")
                letters = ", ".join("xy"[: operator.arity])
                call = f"{operator.name}({letters})" + (", ridge(x, ρ)" if operator.name == "ridge" else "")
                lines.append(f"| `{call}` | ${formula}$ | {operator.doc.replace('|', chr(8739))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
