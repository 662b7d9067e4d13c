"""The library: names, texts, and the paper's formulas behind them."""

from __future__ import annotations

import pytest

from evoprune import Expr, functions, parse
from evoprune.errors import EvopruneError
from evoprune.expression.library import EVOLVED, SOAP, resolve

# The supplement's expressions in prefix form, with the ridges of the published experiments.
PAPER = {
    "l1": "sum_g(abs(W_I))",
    "l2": "sqrt(sum_g(sq(W_I)))",
    "bn_scale": "abs(slice(B))",
    "fpgm": "sqrt(sum_g(sq(sub(W_I, geo(W)))))",
    "di": "mul(count_s(F+), matmul(matmul(tran(sub(mean_s(F+), mean_s(F))), inv(ridge(matmul("
    "tran(sub(F, mean_s(F))), sub(F, mean_s(F)))))), sub(mean_s(F+), mean_s(F))))",
    "mmd": "sub(sub(add(div(sum_g(rbf(F+, F+)), sq(count_s(F+))), div(sum_g(rbf(F-, F-)), sq(count_s(F-)))), "
    "div(sum_g(rbf(F+, F-)), mul(count_s(F+), count_s(F-)))), "
    "div(sum_g(rbf(F+, F-)), mul(count_s(F+), count_s(F-))))",
    "abs_snr": "div(abs(sub(mean_g(F+), mean_g(F-))), ridge(add(std_g(F+), std_g(F-)), 1e-4))",
    "t_test": "div(abs(sub(mean_g(F+), mean_g(F-))), sqrt(ridge(add(div(var_g(F+), count_s(F+)), "
    "div(var_g(F-), count_s(F-))), 1e-4)))",
    "fdr": "div(sq(sub(mean_g(F+), mean_g(F-))), ridge(add(var_g(F+), var_g(F-)), 1e-4))",
    "sym_div": "add(add(div(var_g(F+), ridge(var_g(F-), 0.05)), div(var_g(F-), ridge(var_g(F+), 0.05))), "
    "div(sq(sub(mean_g(F+), mean_g(F-))), ridge(add(var_g(F+), var_g(F-)), 0.05)))",
    "xi_2": "var_g(F+)",
    "xi_3": "var_g(W_I)",
}


@pytest.mark.parametrize("name", PAPER)
def test_texts_are_the_papers(name: str) -> None:
    assert functions[name].expr == parse(PAPER[name])


def test_who_belongs_where() -> None:
    assert SOAP == ("l1", "l2", "bn_scale", "fpgm", "di", "mmd", "abs_snr", "t_test", "fdr", "sym_div")
    assert set(EVOLVED) == {"xi_star", "xi_1", "xi_2", "xi_3", "xi_imagenet", "xi_star_code"}
    assert set(functions) == {*SOAP, *EVOLVED, "mean_activation", "random"}


def test_every_function_says_where_it_is_from_and_what_it_rewards() -> None:
    for function in functions.values():
        assert function.source
        assert function.rewards.endswith(".")
        assert function.latex
        assert str(function) == function.text


def test_a_function_is_a_name_a_text_or_a_tree() -> None:
    tree = functions["xi_2"].expr
    assert isinstance(tree, Expr)
    assert resolve("xi_2").expr == resolve("var_g( F+ )").expr == resolve(tree).expr == tree
    assert resolve(functions["xi_2"]).name == resolve(" xi_2 ").name == "xi_2"
    assert resolve("var_g(F+)").name == "var_g(F+)"
    assert functions["random"].expr is None
    assert parse(functions["xi_2"]) == tree
    with pytest.raises(EvopruneError, match="expected the text"):
        parse(functions["random"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("xi_sta", "did you mean xi_star?"),
        ("L1", "did you mean l1?"),
        ("mean_activ", "did you mean mean_activation?"),
        ("mean_gg(F)", "mean_g"),
        ("W_i", "did you mean W_I?"),
    ],
)
def test_a_misspelt_name_is_suggested(name: str, message: str) -> None:
    with pytest.raises(EvopruneError, match="did you mean") as caught:
        resolve(name)
    assert message in str(caught.value)


def test_the_mapping_says_what_there_is() -> None:
    with pytest.raises(KeyError, match="did you mean fpgm"):
        functions["fpmg"]
    assert "fpmg" not in functions and 3 not in functions
    assert functions.get("fpmg") is functions.get(3) is None  # type: ignore[call-overload]
    assert len(functions) == 18
    with pytest.raises(EvopruneError, match="got int"):
        resolve(3)  # type: ignore[arg-type]
