"""Text to tree and back: parsing, printing, LaTeX, and the tree drawn with lines."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from string import Formatter
from typing import TYPE_CHECKING, NamedTuple

from evoprune.errors import ExpressionError, ParseError
from evoprune.expression.tree import MAX_SIZE, Expr
from evoprune.expression.vocabulary import ATOM, DEFAULT_RHO, OPERANDS, OPERATORS

if TYPE_CHECKING:
    from evoprune.expression.library import Function

_TOKEN = re.compile(
    r"\s*(?:(?P<operand>[Ff][+-])"
    r"|(?P<number>[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?:inf|nan)\b))"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<mark>[(),]))"
)

# What to write for the signs of arithmetic.
_CALLS = {
    "+": "add(x, y), or F+ without a space",
    "-": "sub(x, y), or F- without a space",
    "*": "mul(x, y)",
    "/": "div(x, y)",
    "@": "matmul(x, y)",
    "^": "sq(x)",
}

MAX_DRAWING = 10**8
"""The most characters of a tree drawn with lines."""


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


class _Open(NamedTuple):
    """An operator whose closing parenthesis has not come yet."""

    token: _Token
    args: list[Expr]
    numbers: list[float]

    @property
    def may_have_number(self) -> bool:
        return self.token.text == "ridge" and len(self.args) == 1 and not self.numbers

    @property
    def closers(self) -> str:
        """What may come after the operands so far."""
        if self.may_have_number:
            return "',' or ')'"
        return "','" if len(self.args) < OPERATORS[self.token.text].arity else "')'"


def parse(text: str | Expr | Function) -> Expr:
    """Read an expression, such as `div(var_g(F-), ridge(var_g(F+), 0.05))`; a tree is given back as it is.

    Raises ParseError with a caret under the place, what was expected, and the nearest valid name.
    """
    if isinstance(text, Expr):
        return text
    if not isinstance(text, str):
        if isinstance(expr := getattr(text, "expr", None), Expr):  # a function of the library
            return expr
        raise ParseError(f"expected the text of an expression, got {type(text).__name__}")
    tokens = _tokens(text)
    stack: list[_Open] = []
    position = 0
    while True:
        token = tokens[position]
        position += 1
        done: Expr | None = None
        if stack and stack[-1].may_have_number and token.kind != "number":
            raise _error(text, token, f"ridge adds a number above 0, got {_said(token)}")
        if token.kind in ("operand", "name"):
            if token.text in OPERANDS:
                done = Expr(token.text)
                if tokens[position].text == "(":
                    raise _error(
                        text, tokens[position], f"{token.text} is an operand and takes no parentheses"
                    )
            elif token.text in OPERATORS:
                if tokens[position].text != "(":
                    raise _error(
                        text,
                        tokens[position],
                        f"expected '(' after the operator {token.text}, got {_said(tokens[position])}",
                    )
                position += 1
                stack.append(_Open(token, [], []))
                continue
            else:
                raise _error(text, token, _unknown(token.text))
        elif token.kind == "number":
            number = float(token.text)
            if not stack or not stack[-1].may_have_number:
                raise _error(
                    text,
                    token,
                    "a number stands only as the second argument of ridge, as in ridge(W_I, 0.05)",
                )
            if not 0 < number < float("inf"):
                raise _error(text, token, f"ridge adds a number above 0, got {token.text[:60]}")
            stack[-1].numbers.append(number)
        elif token.kind == "end" and not stack:
            raise _error(text, token, "expected an expression, the text ends here")
        else:
            raise _error(text, token, f"expected an operand or an operator, got {_said(token)}")

        # Close every operator that ends here; stop at a comma, which promises another operand.
        while True:
            if done is not None and not stack:
                if tokens[position].kind != "end":
                    raise _error(
                        text,
                        tokens[position],
                        f"the expression ends before this; got {_said(tokens[position])}",
                    )
                return done
            open_ = stack[-1]
            if done is not None:
                open_.args.append(done)
            token = tokens[position]
            position += 1
            arity = OPERATORS[open_.token.text].arity
            if token.text == ",":
                if "','" not in open_.closers:
                    raise _error(text, token, f"expected ')': {_takes(open_.token.text)}")
                break
            if token.text != ")":
                raise _error(
                    text, token, f"expected {open_.closers} inside {open_.token.text}(…), got {_said(token)}"
                )
            if len(open_.args) != arity:
                raise _error(text, open_.token, f"{_takes(open_.token.text)}, got {len(open_.args)}")
            stack.pop()
            done = Expr(open_.token.text, open_.args, open_.numbers[0] if open_.numbers else None)


def to_text(expr: Expr) -> str:
    """The expression as `parse` reads it."""
    return "".join(piece for piece, _ in _pieces(expr))


def span(expr: Expr, index: int) -> tuple[int, int]:
    """Where in the printed text the node at a position of `walk()` starts and ends."""
    start = 0
    seen = -1
    for piece, begins_node in _pieces(expr):
        seen += begins_node
        if begins_node and seen == index:
            break
        start += len(piece)
    return start, start + len(to_text(expr.at(index)))


def point(text: str, start: int, end: int, width: int = 96) -> str:
    """The text with carets under a place; only the neighbourhood of the place where it is long."""
    left = max(0, min(start - width // 3, len(text) - width)) if len(text) > width else 0
    right = min(len(text), left + width)
    head, tail = "…" if left else "", "…" if right < len(text) else ""
    carets = max(1, min(end, right) - start)
    # A character a column: line ends and tabs would move the carets away from the place.
    line = "".join(each if each.isprintable() else " " for each in head + text[left:right] + tail)
    return f"  {line}\n  {' ' * (len(head) + start - left)}{'^' * carets}"


def to_latex(expr: Expr) -> str:
    """The expression as a formula in the paper's notation."""
    from evoprune.expression.check import infer

    shapes = infer(expr)
    pieces: list[str] = []
    stack: list[Expr | str] = [expr]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            pieces.append(item)
        elif not item.args:
            pieces.append(OPERANDS[item.name].latex)
        else:
            rho = ""
            if item.rho is not None:
                rho = latex_number(item.rho) + (r"\,\mathbf{I}" if shapes[item.args[0]].is_square else "")
            stack.extend(reversed(_latex_parts(item, rho)))
    return "".join(pieces)


def _latex_parts(node: Expr, rho: str) -> list[Expr | str]:
    """An operator's form in LaTeX, with its operands still to be written."""
    operator = OPERATORS[node.name]
    parts: list[Expr | str] = []
    for literal, field, _, _ in Formatter().parse(operator.latex):
        parts.append(literal)
        if field == "rho":
            parts.append(rho)
        elif field is not None:
            arg = node.args[int(field)]
            binds = OPERATORS[arg.name].binds if arg.args else ATOM
            loose = binds < operator.needs[int(field)]
            parts += [r"\left(", arg, r"\right)"] if loose else [arg]
    return parts


def to_tree(expr: Expr) -> str:
    """The tree drawn with lines, a node per line.

    Raises ExpressionError where the drawing, as wide as the tree is deep, has over MAX_DRAWING characters.
    """
    lines = []
    drawn = 0
    stack = [(expr, "", "")]
    while stack:
        node, lead, below = stack.pop()
        rho = f" {node.rho!r}" if node.rho is not None and node.rho != DEFAULT_RHO else ""
        lines.append(f"{lead}{node.name}{rho}")
        drawn += len(lines[-1])
        if drawn > MAX_DRAWING:
            raise ExpressionError(
                f"the drawing of a tree may have at most {MAX_DRAWING:,} characters; this one, of a tree "
                f"{expr.depth:,} levels deep, would have more, its text has not"
            )
        for i in range(len(node.args) - 1, -1, -1):
            last = i == len(node.args) - 1
            stack.append(
                (node.args[i], below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "))
            )
    return "\n".join(lines)


def suggest(name: str, known: Iterable[str]) -> str:
    """`; did you mean mean_g?` where a known name is near, else nothing.

    Near is a name that differs in case and underscores only, one of nearly the same letters, one that the
    word begins with (`variance`, `trace`), or one of similar letters.
    """
    names = {each.lower(): each for each in (*known, *(operator.base for operator in OPERATORS.values()))}
    plain = name.lower()
    close = (
        [each for each in names if each.replace("_", "") == plain.replace("_", "")]
        or difflib.get_close_matches(plain, names, n=1, cutoff=0.8)
        or sorted((each for each in names if len(each) > 1 and plain.startswith(each)), key=len)[-1:]
        or difflib.get_close_matches(plain, names, n=1)
    )
    if not close:
        return ""
    meant = names[close[0]]
    if f"{meant}_g" in OPERATORS:
        meant = f"{meant}_g (over all entries) or {meant}_s (over the rows)"
    return f"; did you mean {meant}?"


def _pieces(expr: Expr) -> list[tuple[str, bool]]:
    """The text in pieces, each with whether it begins a node."""
    pieces: list[tuple[str, bool]] = []
    stack: list[Expr | str] = [expr]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            pieces.append((item, False))
        elif not item.args:
            pieces.append((item.name, True))
        else:
            pieces.append((item.name, True))
            if item.rho is not None and item.rho != DEFAULT_RHO:
                stack.append(f", {item.rho!r})")
            else:
                stack.append(")")
            for i, arg in reversed(list(enumerate(item.args))):
                stack.append(arg)
                stack.append(", " if i else "(")
    return pieces


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    position = 0
    end = len(text.rstrip())
    nodes = 0
    while position < end:
        match = _TOKEN.match(text, position)
        if not match or match.lastgroup is None:
            start = end - len(text[position:end].lstrip())
            return [*tokens, _Token("unknown", text[start], start)]
        kind = match.lastgroup
        tokens.append(_Token(kind, match.group(kind), match.start(kind)))
        nodes += kind in ("operand", "name")
        if nodes > MAX_SIZE:
            raise ParseError(
                f"an expression may have at most {MAX_SIZE} operators and operands, this one has more"
            )
        position = match.end()
    return [*tokens, _Token("end", "", len(text))]


def _error(text: str, token: _Token, message: str) -> ParseError:
    return ParseError(f"{message}\n{point(text, token.start, token.start + len(token.text))}")


def _said(token: _Token) -> str:
    if token.kind == "unknown":
        call = _CALLS.get(token.text)
        return f"{token.text!r}, which is not part of the language" + (f": write {call}" if call else "")
    return "the end of the text" if token.kind == "end" else repr(token.text[:60])


def _takes(name: str) -> str:
    if name == "ridge":
        return "ridge takes 1 operand and possibly a number"
    arity = OPERATORS[name].arity
    return f"{name} takes {arity} operand{'s' * (arity != 1)}"


def _unknown(name: str) -> str:
    from evoprune.expression.library import functions

    known = [*OPERANDS, *OPERATORS]
    if name in functions:
        return f"{name!r} is a function of the library, not a word of the language: functions[{name!r}].expr"
    return (
        f"unknown name {name[:60]!r}{suggest(name, known)}\n"
        f"  operands:  {' '.join(OPERANDS)}\n  operators: {' '.join(OPERATORS)}"
    )


def latex_number(value: float) -> str:
    """A number as it stands in a formula."""
    mantissa, _, exponent = f"{value!r}".partition("e")
    if not exponent and 1e-3 <= value < 1e5:
        return f"{value:g}" if float(f"{value:g}") == value else mantissa
    mantissa, _, exponent = f"{value:e}".partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    power = f"10^{{{int(exponent)}}}"
    return power if mantissa == "1" else rf"{mantissa} \cdot {power}"
