"""A formula as MathML, which browsers show without any script: the same notation as the LaTeX."""

from __future__ import annotations

from evoprune.expression.check import infer
from evoprune.expression.shapes import Shape
from evoprune.expression.text import latex_number
from evoprune.expression.tree import Expr
from evoprune.expression.vocabulary import ATOM, OPERANDS, OPERATORS, POWER

_SCRIPT = {"F": "ℱ", "W": "𝒲", "B": "ℬ"}
_INFIX = {"add": "+", "sub": "−", "mul": "×", "matmul": "\u2062", "outprod": "⊗"}


def mathml(expr: Expr, *, block: bool = True) -> str:
    """The formula as a `<math>` element."""
    shapes = infer(expr)
    body = expr.fold(lambda node, parts: _written(node, parts, shapes))[0]
    display = ' display="block"' if block else ""
    return f'<math xmlns="http://www.w3.org/1998/Math/MathML"{display}>{body}</math>'


def _written(node: Expr, parts: list[tuple[str, int]], shapes: dict[Expr, Shape]) -> tuple[str, int]:
    """A node's markup and how tightly it binds, from those of its operands."""
    if node.name in OPERANDS:
        # A sign above a letter and a power beside it would read as one exponent.
        return _operand(node.name), POWER if node.name in ("F+", "F-") else ATOM
    operator = OPERATORS[node.name]
    inner = [
        _fenced("(", part, ")") if binds < needed else f"<mrow>{part}</mrow>"
        for (part, binds), needed in zip(parts, operator.needs, strict=False)
    ]
    return _applied(node, inner, shapes), operator.binds


def _applied(node: Expr, inner: list[str], shapes: dict[Expr, Shape]) -> str:
    name = node.name
    if name in _INFIX:
        return f"{inner[0]}<mo>{_INFIX[name]}</mo>{inner[1]}"
    match name:
        case "div":
            return f"<mfrac>{inner[0]}{inner[1]}</mfrac>"
        case "abs":
            return _fenced("|", inner[0], "|")
        case "sqrt":
            return f"<msqrt>{_fenced('|', inner[0], '|')}</msqrt>"
        case "sq":
            return f"<msup>{inner[0]}<mn>2</mn></msup>"
        case "inv":
            return f"<msup>{inner[0]}<mrow><mo>−</mo><mn>1</mn></mrow></msup>"
        case "tran":
            return f"<msup>{inner[0]}<mo>⊤</mo></msup>"
        case "ridge":
            unit = "<mi>𝐈</mi>" if shapes[node.args[0]].is_square else ""
            return f"{inner[0]}<mo>+</mo>{_number(node.rho or 0.0)}{unit}"
        case "dot":
            return _fenced("⟨", f"{inner[0]}<mo>,</mo>{inner[1]}", "⟩")
    base, _, index = name.partition("_")
    head = f'<mi mathvariant="normal">{base}</mi>'
    if index:
        head = f"<msub>{head}<mi>{index}</mi></msub>"
    return f"{head}<mo>\u2061</mo>{_fenced('(', '<mo>,</mo>'.join(inner), ')')}"


def _operand(name: str) -> str:
    letter = f"<mi>{_SCRIPT[name[0]]}</mi>"
    if name == "W_I":
        return f"<msub>{letter}<mi>I</mi></msub>"
    sign = {"+": "+", "-": "−"}.get(name[-1])
    return f"<msup>{letter}<mo>{sign}</mo></msup>" if sign else letter


def _fenced(left: str, part: str, right: str) -> str:
    return f'<mrow><mo stretchy="true">{left}</mo>{part}<mo stretchy="true">{right}</mo></mrow>'


def _number(value: float) -> str:
    """As in the LaTeX: very small and large ones with a power of ten."""
    mantissa, _, exponent = latex_number(value).partition("10^{")
    if not exponent:
        return f"<mn>{mantissa}</mn>"
    power = f"<msup><mn>10</mn><mn>{exponent.rstrip('}').replace('-', '−')}</mn></msup>"
    factor = mantissa.removesuffix(r" \cdot ")
    return power if not factor else f"<mrow><mn>{factor}</mn><mo>⋅</mo>{power}</mrow>"
