"""Scoring a network: streamed, sampled and from arrays, the numbers are the same."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import evoprune
from evoprune import Expr, functions
from evoprune.errors import ScoringError
from evoprune.pruning.sites import Site, batch_norm_of, filters_of, first_read, maps_of
from evoprune.scoring import statistics
from evoprune.scoring.plan import plan
from evoprune.scoring.steps import CLASS
from strategies import scalars


@cache
def network() -> nn.Module:
    """Two convolutions, one with batch-norm, and a fully connected layer, in float64."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.ReLU(),
        nn.Conv2d(3, 4, 1), nn.Tanh(), nn.Flatten(),
        nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3),
    ).double()  # fmt: skip
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm2d)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([0.5, 1.0, -1.5]))
        model[6].bias.add_(1.0)  # type: ignore[operator]  # alive: of a dead channel only rounding is left
        norm.running_mean.copy_(torch.tensor([0.1, -0.2, 0.0]))  # type: ignore[union-attr]
    return model


def images(seed: int = 0, count: int = 17, classes: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    labels[:classes] = torch.arange(classes)
    return torch.randn(count, 2, 3, 3, dtype=torch.float64, generator=generator), labels


def split(data: tuple[Tensor, Tensor], sizes: list[int]) -> list[tuple[Tensor, Tensor]]:
    """The data in batches of these sizes, the last one of what is left."""
    cuts = np.minimum(np.cumsum(sizes), len(data[0])).tolist()
    parts = [(data[0][a:b], data[1][a:b]) for a, b in zip([0, *cuts], [*cuts, len(data[0])], strict=True)]
    return [part for part in parts if len(part[0])]


@cache
def sites() -> tuple[Site, ...]:
    return evoprune.sites(network(), images()[0][:1])


def maps(model: nn.Module, site: Site, inputs: Tensor) -> Tensor:
    seen: dict[str, Tensor] = {}
    reader = model.get_submodule(first_read(site).module)
    handle = reader.register_forward_pre_hook(lambda module, args: seen.update(given=args[0].detach()))
    was = model.training
    model.eval()(inputs)
    model.train(was)
    handle.remove()
    return maps_of(site, seen["given"])


def from_arrays(model: nn.Module, function: Any, data: tuple[Tensor, Tensor], site: Site) -> np.ndarray:
    return evoprune.score_arrays(
        function,
        maps(model, site, data[0]),
        data[1],
        filters_of(model, site),
        batch_norm_of(model, site),
        dtype="float64",
    )


@pytest.mark.parametrize("batch", [1, 4, 17])
def test_the_library_streams_what_arrays_give(batch: int) -> None:
    data = images()
    scores = evoprune.score(network(), list(functions), data, sites=sites(), batch_size=batch)
    for name in functions:
        if name == "random":
            continue
        for site in sites():
            want = from_arrays(network(), name, data, site)
            np.testing.assert_allclose(scores[name][site.name], want, rtol=1e-9, atol=1e-15, err_msg=name)
            modes = {"mmd": "sample", **dict.fromkeys(("l1", "l2", "fpgm", "bn_scale", "xi_3"), "parameters")}
            assert scores.modes[name][site.name] == modes.get(name, "streamed")


@given(
    expr=scalars(max_leaves=6),
    seed=st.integers(0, 999),
    sizes=st.lists(st.integers(1, 9), max_size=6),
    data=st.data(),
)
@settings(max_examples=400)
def test_any_split_streams_what_arrays_give(
    expr: Expr, seed: int, sizes: list[int], data: st.DataObject
) -> None:
    """Also with batches that lack classes: sorted by label, most do."""
    pair = images(seed)
    if data.draw(st.booleans()):
        order = pair[1].argsort()
        pair = pair[0][order], pair[1][order]
    site = data.draw(st.sampled_from(sites()))
    wants = []
    for nudge in (0.0, 1e-12):
        noisy = pair[0] * (1 + nudge * torch.randn(pair[0].shape, dtype=torch.float64))
        try:
            wants.append(from_arrays(network(), expr, (noisy, pair[1]), site))
        except ScoringError:
            wants.append(None)
    if wants[0] is None or wants[1] is None:
        assume(wants[0] is None and wants[1] is None)
        with pytest.raises(ScoringError, match="not finite"):
            evoprune.score(network(), expr, split(pair, sizes), sites=[site])
        return
    assume(np.all(np.abs(wants[0] - wants[1]) <= 1e-6 * np.abs(wants[0])))
    got = evoprune.score(network(), expr, split(pair, sizes), sites=[site])[str(expr)][site.name]
    np.testing.assert_allclose(got, wants[0], rtol=1e-7, atol=0)


STREAMED = [
    "var_g(sub(F, mean_s(F)))",
    "sum_g(sq(sub(F+, mean_s(F-))))",
    "mean_g(mul(sub(F-, mean_g(F-)), F-))",
    "std_g(div(sub(F, mean_s(F)), ridge(std_s(F))))",
    "tr(matmul(tran(sub(F, mean_g(F))), F))",
    "sum_g(inv(matmul(tran(F), F)))",
    "dot(F+, F+)",
    "var_g(tr(sqrt(F-)))",
    "tr(mean_s(F+))",
    "tr(mean_s(matmul(F+, var_g(F))))",
    "sum_g(var_s(sq(F)))",
    "mean_g(matmul(F, W_I))",
    "var_g(matmul(F+, tran(W)))",
    "var_g(mean_s(tran(F)))",
    "std_g(count_s(tran(F)))",
    "sum_g(mean_s(add(F, mul(B, W_I))))",
    "prod_g(add(tr(F+), ridge(abs(slice(B)), 1.0)))",
    "sum_g(prod_s(ridge(F-, 1.0)))",
    "mean_g(div(var_g(W_I), ridge(sq(F), 0.1)))",
    "var_g(sub(mean_g(F+), F-))",
    "var_g(add(F, sq(F)))",
    "sum_g(mean_s(sub(add(F, F), mean_s(F))))",
    "dot(tr(F), tr(F))",
    "matmul(tr(F), tr(F))",
    "mean_g(slice(tran(F)))",
    "var_g(inv(tr(ridge(sq(F), 0.5))))",
    "sum_g(tran(sub(tran(F), var_g(F))))",
    "mean_s(mean_s(mul(F, tran(tran(F)))))",
    "mean_g(sub(div(F, var_g(F)), mean_s(F)))",
    "sum_g(sq(sub(var_g(F+), mul(mean_s(F), mean_g(F-)))))",
    "std_s(sub(div(W_I, var_g(F+)), mean_g(F-)))",
    "mean_g(sub(mean_g(F+), div(sq(ridge(mul(W_I, var_g(F-)), 0.5)), var_g(F+))))",
    "sum_g(div(mean_s(F), sub(count_s(F+), count_s(F+))))",
    "sum_g(inv(matmul(tran(F+), F+)))",
    "sum_g(inv(ridge(matmul(tran(sub(F-, mean_s(F-))), sub(F-, mean_s(F-))))))",
    "sum_g(matmul(inv(matmul(tran(F+), F+)), matmul(tran(F), F)))",
    "mean_g(sqrt(div(F, std_g(F))))",
    "var_g(abs(mul(F+, sub(mean_g(F-), var_g(F)))))",
    "tr(matmul(F+, tran(F+)))",
    "tr(matmul(tran(F+), sub(F+, mean_s(F-))))",
    "sum_g(matmul(tran(F+), F+))",
    "sum_g(matmul(F+, tran(F-)))",
    "mean_g(matmul(F, mean_s(F+)))",
    "sum_s(matmul(tr(F), F))",
    "mean_g(outprod(F+, tr(F-)))",
    "std_g(outprod(F+, W_I))",
    "var_g(tr(sub(div(F+, std_g(F)), mean_s(F-))))",
    "std_g(tr(sub(mean_s(F), mul(mean_g(F-), F+))))",
    "var_g(mean_s(tran(sub(F, mean_s(F+)))))",
    "var_g(sqrt(sum_s(tran(mul(F, mean_g(F))))))",
]


@pytest.mark.parametrize("text", STREAMED)
def test_what_streams(text: str) -> None:
    assert plan(text).streamed == (0,)
    data = images(3, count=29)
    for site in sites():
        want = from_arrays(network(), text, data, site)
        got = evoprune.score(network(), text, split(data, [4, 9, 2]), sites=[site])[text][site.name]
        np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-13)


@pytest.mark.parametrize(
    "text",
    [
        "tr(matmul(tran(F), matmul(F, tran(W))))",
        "sum_g(sq(sum_s(matmul(tran(F), F))))",
        "var_g(tr(sub(F, mean_s(matmul(F, mean_g(F))))))",
        "var_g(tr(sub(matmul(F, mean_g(F)), mean_s(F))))",
        "mean_g(tr(div(mean_g(F), ridge(sq(F), 1.0))))",
    ],
)
def test_what_no_rewrite_may_touch(text: str) -> None:
    data = images(3, count=29)
    for site in sites():
        want = from_arrays(network(), text, data, site)
        got = evoprune.score(network(), text, data, sites=[site])[text][site.name]
        np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-13)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("mmd", "rbf"),
        ("sum_g(geo(F))", "geo"),
        ("sum_g(slice(F))", "slice"),
        ("sum_g(mul(F+, F-))", "mul"),
        ("sum_g(sqrt(sub(F, mean_g(F))))", "only after the pass"),
        ("sum_g(sq(matmul(F, tran(F))))", "matmul"),
        ("var_g(matmul(F, mean_s(F)))", "value of other images"),
    ],
)
def test_what_needs_a_sample_says_why(text: str, reason: str) -> None:
    found = plan([text, "xi_2"])
    assert found.streamed == (1,)
    ((position, why),) = found.sampled
    assert position == 0
    assert reason in why
    assert why in repr(found)


def test_one_plan_shares_what_functions_have_in_common() -> None:
    alone = {step for name in ("xi_star", "xi_1", "sym_div") for step in map(str, plan(name).needs)}
    together = plan(["xi_star", "xi_1", "sym_div"])
    assert (
        set(map(str, together.needs))
        == alone
        == {
            "moments with squares of F, each class",
            "pixel moments of F, all images",
        }
    )
    assert len(together.program.steps) < sum(
        len(plan(name).program.steps) for name in ("xi_star", "xi_1", "sym_div")
    )
    assert plan("var_g(sqrt(sq(F)))").needs == plan("var_g(abs(F))").needs


def test_moments_of_all_images_come_with_those_of_each_class() -> None:
    assert [need.by_class for need in plan(["var_g(F)", "mean_g(sqrt(F))"]).needs] == [False, False]
    assert [need.by_class for need in plan(["var_g(F+)", "mean_g(sqrt(F))"]).needs] == [True, True]
    assert [need.by_class for need in plan(["var_g(F+)", "var_g(mean_s(F))"]).needs] == [True, False]


def test_xi_star_needs_no_map_sums_per_class() -> None:
    assert (
        plan("xi_star").memory(channels=64, pixels=56 * 56, classes=1000) < 8 * 64 * (56 * 56 + 2 * 1000) + 1
    )


def test_no_class_has_a_map_of_its_own_where_all_share_one() -> None:
    for name in ("xi_star", "xi_1", "xi_star_code"):
        for step in plan(name).program.steps:
            assert step.scope < CLASS or not step.shape.axes, (name, step)


def test_maps_of_very_many_classes_are_left_to_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    site = sites()[0]
    data = images(count=40)
    names = ["mean_g(sub(mean_s(F+), F))", "sum_g(sq(mean_s(F+)))", "xi_star"]
    assert evoprune.score(network(), names, data, sites=[site]).modes[names[1]][site.name] == "streamed"
    scatter = "sum_g(inv(matmul(tran(F+), F+)))"
    with monkeypatch.context() as patch:
        patch.setattr(statistics, "SCATTER_ENTRIES", 3 * 3 * 4**2 - 1)
        found = evoprune.score(network(), [scatter, "di"], data, sites=[site])
        assert found.modes[scatter][site.name] == "sample"
        assert found.modes["di"][site.name] == "streamed"
        np.testing.assert_allclose(
            found[scatter][site.name], from_arrays(network(), scatter, data, site), rtol=1e-9
        )
    monkeypatch.setattr(statistics, "CLASS_MAP_ENTRIES", 3 * 12 - 1)
    for way in (data, [data]):
        scores = evoprune.score(network(), names, way, sites=[site], classes=3)
        assert scores.modes[names[1]][site.name] == "sample"
        assert scores.modes["xi_star"][site.name] == "streamed"
        want = from_arrays(network(), names[1], data, site)
        np.testing.assert_allclose(scores[names[1]][site.name], want, rtol=1e-9)
        again = evoprune.score(network(), names, sites=[site], statistics=scores.statistics)
        assert torch.equal(again[names[1]][site.name], scores[names[1]][site.name])
    assert evoprune.score(network(), "xi_star", [data], sites=[site])
    with pytest.raises(ScoringError, match=r"at site '0': the data has 3 classes or more; say .* classes="):
        evoprune.score(network(), names, [data], sites=[site])


def test_parameters_need_no_data() -> None:
    scores = evoprune.score(network(), ["l1", "fpgm", "random"], example_inputs=images()[0][:1])
    assert set(scores["l1"]) == {site.name for site in sites()}
    again = evoprune.score(network(), "random", sites=sites())
    assert all(torch.equal(again["random"][name], scores["random"][name]) for name in again["random"])
    other = evoprune.score(network(), "random", sites=sites(), seed=1)
    assert not torch.equal(again["random"]["0"], other["random"]["0"])
    with pytest.raises(ScoringError, match="need data: xi_2"):
        evoprune.score(network(), ["l1", "xi_2"], sites=sites())
    with pytest.raises(ScoringError, match="example_inputs"):
        evoprune.score(network(), "l1")


class OneByOne(torch.utils.data.IterableDataset[tuple[Tensor, int]]):
    """Images of which nobody knows how many will come."""

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        self.inputs, self.labels = inputs, labels

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return iter(zip(self.inputs, self.labels.tolist(), strict=True))


def test_loaders_tensors_and_iterables_give_the_same_numbers() -> None:
    inputs, labels = images(count=40)
    dataset = torch.utils.data.TensorDataset(inputs, labels)
    names = ["xi_star", "mmd", "di"]
    want = evoprune.score(network(), names, (inputs, labels), sample=20)
    ways = [
        torch.utils.data.DataLoader(dataset, batch_size=7),
        torch.utils.data.DataLoader(OneByOne(inputs, labels), batch_size=7),
        [(inputs[:31], labels[:31]), (inputs[31:], labels[31:])],
        ((inputs[:31], labels[:31]), (inputs[31:], labels[31:])),
        ((inputs[i : i + 3], labels[i : i + 3].tolist()) for i in range(0, 40, 3)),
        [{"image": inputs, "label": labels}],
        (inputs.numpy(), labels.numpy()),
        (inputs, labels.to(torch.uint8)),
        [(inputs, list(labels))],
        [(inputs, list(labels.numpy()))],
        (inputs, labels.numpy().astype(object)),
        (frozen(inputs.numpy()), labels),
        (inputs.numpy().astype(">f8"), labels),
        (inputs.flip(0).numpy()[::-1], labels),
    ]
    for way in ways:
        got = evoprune.score(network(), names, way, sites=sites(), sample=20)
        assert got.images == 40
        assert got.sampled_images == 20
        for name in names:
            for site in sites():
                torch.testing.assert_close(
                    got[name][site.name], want[name][site.name], rtol=1e-10, atol=1e-15
                )


def frozen(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.setflags(write=False)
    return array


@pytest.mark.parametrize("batch", [3, 40])
def test_an_iterator_loses_no_batch_to_finding_the_sites(batch: int) -> None:
    inputs, labels = images(count=40)
    want = evoprune.score(network(), "xi_star", (inputs, labels), batch_size=batch)
    parts = [(inputs[:0], labels[:0]), *split((inputs, labels), [batch] * 14)]
    for way in (iter(parts), (part for part in parts)):
        got = evoprune.score(network(), "xi_star", way)
        assert got.images == 40
        assert all(torch.equal(got["xi_star"][s.name], want["xi_star"][s.name]) for s in sites())


def test_a_list_of_two_batches_of_images_is_no_pair() -> None:
    inputs, _ = images(count=40)
    for parts in ([inputs[:20], inputs[20:]], [inputs[:10], inputs[10:20], inputs[20:]]):
        scores = evoprune.score(network(), "mean_activation", parts, sites=sites())
        assert scores.images == 40


def test_images_limits_how_many_are_used() -> None:
    inputs, labels = images(count=40)
    want = evoprune.score(network(), "xi_star", (inputs[:25], labels[:25]), sites=sites())
    for way in ((inputs, labels), [(inputs[:18], labels[:18]), (inputs[18:], labels[18:])]):
        got = evoprune.score(network(), "xi_star", way, sites=sites(), images=25)
        assert got.images == 25
        for site in sites():
            torch.testing.assert_close(got["xi_star"][site.name], want["xi_star"][site.name])


def test_label_names_mean_nothing() -> None:
    inputs, labels = images(count=50)
    names = ["xi_star", "mmd", "xi_imagenet"]
    want = evoprune.score(network(), names, (inputs, labels), sites=sites(), sample=20)
    renamed = torch.tensor([700, -3, 41])[labels]
    words = [["cat", "dog", "eel"][label] for label in labels.tolist()]
    for other in (renamed, words):
        batches = [(inputs[i : i + 8], other[i : i + 8]) for i in range(0, 50, 8)]
        got = evoprune.score(network(), names, batches, sites=sites(), sample=20)
        for name in names:
            for site in sites():
                torch.testing.assert_close(got[name][site.name], want[name][site.name], rtol=1e-9, atol=1e-15)


def passing(inputs: Tensor) -> tuple[nn.Module, Site]:
    """A network whose first site's maps are its inputs."""
    channels = inputs.shape[1]
    model = nn.Sequential(nn.Conv2d(channels, channels, 1, bias=False), nn.Conv2d(channels, 2, 1))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(channels)[:, :, None, None])
    model.to(inputs.dtype)
    return model, evoprune.sites(model, inputs[:1])[0]


def test_float32_far_from_zero_keeps_its_digits() -> None:
    """Maps with mean 1000 and deviation 1, in float32, against the definition in float64."""
    generator = torch.Generator().manual_seed(5)
    inputs = 1000 + torch.randn(300, 3, 6, 6, generator=generator)
    labels = torch.randint(5, (300,), generator=generator)
    model, site = passing(inputs)
    maps64 = maps(model, site, inputs).double()
    for name in ("xi_star", "xi_1", "sym_div", "fdr", "t_test", "di", "xi_imagenet", "abs_snr"):
        want = evoprune.score_arrays(name, maps64, labels, dtype="float64", executor="reference")
        got = evoprune.score(model, name, (inputs, labels), sites=[site], batch_size=32)[name][site.name]
        np.testing.assert_allclose(got, want, rtol=1e-4, err_msg=name)


@pytest.mark.parametrize(
    "text",
    [
        "var_g(sub(sq(F), sq(ridge(F, 1.0))))",
        "mean_g(sub(sq(F), mul(F, ridge(F, 0.001))))",
        "mean_g(sq(sq(sq(sq(F)))))",  # 1e48
        "var_g(sum_s(tran(F)))",
        "sum_g(var_s(matmul(F, tran(W))))",
        "var_g(prod_s(tran(sqrt(sqrt(F)))))",
    ],
)
def test_steps_on_float32_maps_are_float64(text: str) -> None:
    generator = torch.Generator().manual_seed(6)
    inputs = 1000 + torch.randn(120, 3, 4, 5, generator=generator)
    labels = torch.arange(120) % 4
    model, site = passing(inputs)
    got = evoprune.score(model, text, (inputs, labels), sites=[site])[text][site.name]
    np.testing.assert_allclose(got, from_arrays(model, text, (inputs, labels), site), rtol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_entries_do_not_vary_at_all(dtype: torch.dtype) -> None:
    """What rounding leaves of the deviation of a constant map would be a divisor: 1e8 instead of 0."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(150, 4, 7, 7, generator=generator, dtype=dtype)
    for channel, value in enumerate([0.1, 1000.3, -3.7e-5]):
        inputs[:, channel] = value
    inputs[:, 3, 0, 0] = 0.3
    labels = torch.randint(3, (150,), generator=generator)
    model, site = passing(inputs)
    texts = [
        "inv(std_g(F))", "inv(sqrt(std_g(F+)))", "inv(sqrt(std_g(F-)))", "inv(std_g(tr(F)))",
        "inv(std_g(sqrt(F)))", "inv(std_g(sq(F)))", "sum_g(inv(std_s(F)))", "sum_g(inv(sqrt(std_s(F+))))",
        "sum_g(inv(sqrt(std_s(F-))))", "inv(std_g(sub(F+, mean_s(F+))))",
    ]  # fmt: skip
    scores = evoprune.score(model, texts, (inputs, labels), sites=[site], batch_size=17)
    for text in texts:
        assert scores.modes[text][site.name] == "streamed"
        want = from_arrays(model, text, (inputs, labels), site)
        assert (want[:3] == 0).all()
        np.testing.assert_allclose(scores[text][site.name], want, rtol=1e-4, err_msg=text)


def test_a_large_batch_adds_up_as_small_ones_do() -> None:
    inputs = torch.full((20_000, 1, 1, 2), 0.1)
    model, site = passing(inputs)
    text = "sum_g(mean_s(F))"
    got = evoprune.score(model, text, (inputs, None), sites=[site], batch_size=20_000)[text][site.name]
    assert float(got) == pytest.approx(2 * float(np.float32(0.1)), rel=1e-6)


def test_autocast_is_for_the_network_only() -> None:
    """The sums over its maps, and what is computed of them, keep their precision."""
    torch.manual_seed(0)
    model = copy.deepcopy(network()).float()
    inputs, labels = images(count=60)
    inputs = inputs.float()
    seen: list[Tensor] = []
    site = evoprune.sites(model, inputs[:1])[0]
    handle = model.get_submodule(first_read(site).module).register_forward_pre_hook(
        lambda module, args: seen.append(maps_of(site, args[0]).float())
    )
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model.eval()(inputs)
    handle.remove()
    for text in ("mean_g(F)", "xi_star", "var_g(matmul(F, tran(W)))"):
        want = evoprune.score_arrays(text, seen[0], labels, filters_of(model, site))
        got = evoprune.score(model, text, (inputs, labels), sites=[site], autocast=True)[text][site.name]
        np.testing.assert_allclose(got, want, rtol=1e-5, err_msg=text)


class Fragile(nn.Module):
    """Has every kind of state that scoring must leave alone, and fails when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 2)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.second = nn.Conv2d(4, 3, 2)
        self.register_buffer("seen", torch.zeros(()))
        self.fail_at = -1
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen += 1  # whatever the mode
        self.norm.running_mean = self.norm.running_mean * 1  # type: ignore[assignment, operator]
        if self.calls == self.fail_at:
            raise RuntimeError("out of cheese")
        return self.second(self.drop(self.norm(self.first(x)).relu())).mean((2, 3))


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(fails: bool) -> None:
    model = Fragile().double()
    model.train()
    model.norm.eval()
    model.first.weight.requires_grad_(False)
    model(images()[0]).sum().backward()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    grads = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    found = evoprune.sites(model, images()[0][:1])
    random_state = torch.get_rng_state()
    if fails:
        model.calls, model.fail_at = 0, 2
        with pytest.raises(ScoringError, match="out of cheese"):
            evoprune.score(model, "xi_star", images(), sites=found, batch_size=5)
    else:
        evoprune.score(model, ["xi_star", "mmd"], images(), sites=found, batch_size=5)
    assert model.training
    assert not model.norm.training
    assert model.drop.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert not model.first.weight.requires_grad
    for name, parameter in model.named_parameters():
        assert parameter.grad is grads[name] or torch.equal(parameter.grad, grads[name])  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), random_state)


def test_bfloat16_is_near() -> None:
    model = nn.Sequential(nn.Conv2d(2, 8, 2), nn.ReLU(), nn.Conv2d(8, 2, 2))
    inputs, labels = images(count=60)
    want = evoprune.score(model, "xi_2", (inputs.float(), labels))["xi_2"]["0"]
    got = evoprune.score(model, "xi_2", (inputs.float(), labels), autocast=True)["xi_2"]["0"]
    torch.testing.assert_close(got, want, rtol=0.05, atol=0)
    assert not torch.equal(got, want)


def test_scores_as_table_csv_and_frame() -> None:
    scores = evoprune.score(network(), ["xi_star", "mmd", "bn_scale"], images(), sites=sites())
    text = str(scores)
    assert all(site.name in text for site in sites())
    assert "sample of 17 images" in text
    rows = scores.to_csv().splitlines()
    assert rows[0] == "function,site,channel,score,mode"
    with pytest.raises(ScoringError, match="cannot be written to /nonexistent"):
        scores.to_csv("/nonexistent/scores.csv")
    assert len(rows) == 1 + 3 * sum(site.channels for site in sites())
    frame = scores.to_pandas()
    assert list(frame.columns) == rows[0].split(",")
    site = sites()[1]
    chosen = frame[(frame.function == "xi_star") & (frame.site == site.name)].score
    np.testing.assert_array_equal(chosen, scores["xi_star"][site.name])
    assert scores.constant("bn_scale") == tuple(s.name for s in sites() if s.batch_norm is None)
    with pytest.raises(KeyError, match="there are xi_star"):
        scores["l1"]


def test_scores_are_found_by_any_form_of_the_function() -> None:
    text = "div(var_g(F-),ridge(var_g(F+),0.0001))"
    scores = evoprune.score(network(), [text, "xi_2"], images(), sites=sites())
    assert scores[text] is scores[evoprune.parse(text)] is scores[str(evoprune.parse(text))]
    assert scores[functions["xi_2"]] is scores["xi_2"]
    assert text in scores and "var_g(F-)" not in scores and 3 not in scores


# Bad input


def failing(data: Any, function: Any = "xi_star", model: nn.Module | None = None, **options: Any) -> str:
    with pytest.raises(ScoringError) as caught:
        evoprune.score(
            model or network(), function, data, sites=sites() if model is None else None, **options
        )
    return str(caught.value)


def test_labels_outside_what_the_data_promised() -> None:
    inputs, labels = images()
    assert "promised 2 classes, 0 to 1" in failing((inputs, labels), classes=2)
    dataset = torch.utils.data.TensorDataset(inputs, labels - 1)
    dataset.classes = ["a", "b", "c"]  # type: ignore[attr-defined]
    assert "label -1" in failing(torch.utils.data.DataLoader(dataset, batch_size=6))
    part = torch.utils.data.Subset(dataset, range(12))
    assert "label -1" in failing(torch.utils.data.DataLoader(part, batch_size=6))


def test_a_batch_of_the_wrong_shape() -> None:
    inputs, labels = images()
    message = failing([(inputs, labels), (inputs[:, :, :2], labels)])
    assert "batch 1" in message
    assert "[2, 2, 3]" in message
    assert "[2, 3, 3]" in message
    assert "forward pass failed on images [17, 3, 3, 3]" in failing((torch.zeros(17, 3, 3, 3), labels))
    assert "[image, …]" in failing([(torch.zeros(4), labels[:4])])
    assert "17 images but 5 labels" in failing((inputs, labels[:5]))


@pytest.mark.parametrize(
    "nothing", [[], iter(()), (torch.zeros(0, 2, 3, 3), torch.zeros(0, dtype=torch.int64))]
)
def test_a_source_that_yields_nothing(nothing: Any) -> None:
    assert "yields nothing" in failing(nothing)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"images": 0}, "images must be a whole number of at least 1, got 0"),
        ({"images": 2.5}, "images must be a whole number"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"classes": -1}, "classes must be"),
        ({"sample": 1}, "sample must be a whole number of at least 2, got 1"),
        ({"seed": -1}, "seed must be"),
        ({"statistics": 3}, "statistics must be what gather returns, got int"),
    ],
)
def test_arguments_out_of_range(arguments: dict[str, Any], message: str) -> None:
    assert message in failing(images(), **arguments)


@pytest.mark.parametrize("device", ["gpu", "mps", "meta", "cuda:99", 3, ""])
def test_devices_that_are_not_there(device: Any) -> None:
    with pytest.raises(evoprune.EvopruneError, match=r"cpu, cuda or cuda:N, got|is not there"):
        evoprune.score(network(), "xi_star", images(), sites=sites(), device=device)


def test_sites_and_models_that_are_none() -> None:
    other = evoprune.sites(
        nn.Sequential(nn.Sequential(nn.Conv2d(2, 3, 1)), nn.Conv2d(3, 2, 1)), images()[0].float()[:1]
    )
    for wrong, message in ((["0"], "got str"), (other, "not of this network")):
        with pytest.raises(ScoringError, match=message):
            evoprune.score(network(), "xi_star", images(), sites=wrong)  # type: ignore[arg-type]
    with pytest.raises(ScoringError, match=r"torch.nn.Module, got int"):
        evoprune.score(3, "xi_star", images())  # type: ignore[arg-type]
    for wrong in (3, None, [None]):
        with pytest.raises(evoprune.EvopruneError, match="a function's name, its text or an Expr, got"):
            evoprune.score(network(), wrong, images(), sites=sites())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "data",
    [3, "cifar10", ("a", "b"), [("a", "b")], [3], [{"text": 1}], {"image": 1}, (torch.zeros(()), 3),
     (torch.zeros(2, 2, 3, 3), 3), (np.array([["a"]]), None)],
)  # fmt: skip
def test_what_is_no_data(data: Any) -> None:
    assert "images" in failing(data)


def test_activations_that_are_not_finite_name_the_site() -> None:
    inputs, labels = images()
    inputs[5, 0, 1, 1] = float("nan")
    for function in ("xi_star", "mmd", "var_g(tr(F))"):
        assert "site '0' has activations that are not finite" in failing((inputs, labels), function)


def test_scores_that_are_not_finite_name_function_and_site() -> None:
    message = failing(images(), "prod_g(sq(sq(ridge(sq(F), 100000.0))))")
    assert "channels of site '0'" in message
    assert "not finite" in message


def test_a_network_without_sites() -> None:
    assert "no sites" in failing(images(), model=nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten()).double())


@pytest.mark.parametrize(
    "labels",
    [torch.zeros(17, 3), torch.zeros(17, 3, dtype=torch.int64), torch.rand(17), None, {"boxes": 1}, {1, 2},
     "words", 3, [{"boxes": 1}] * 17, np.array([None] * 17)],
)  # fmt: skip
def test_labels_that_are_not_one_class_per_image(labels: Any) -> None:
    inputs, _ = images()
    data = [(inputs, labels)] if labels is not None else [inputs]
    message = failing(data, ["xi_star", "l1", "mean_activation"])
    assert "xi_star need labels" in message
    assert "l1, mean_activation" in message
    scores = evoprune.score(network(), ["l1", "mean_activation", "sum_g(rbf(F, F))"], data, sites=sites())
    assert scores.images == 17


def test_one_class_only() -> None:
    inputs, labels = images()
    message = failing((inputs, torch.zeros_like(labels)))
    assert "xi_star read F-" in message
    assert evoprune.score(network(), "xi_2", (inputs, torch.zeros_like(labels)), sites=sites())


def test_interruption_is_clean() -> None:
    model = network()

    def batches() -> Any:
        yield images()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evoprune.score(model, "xi_star", batches(), sites=sites())
    assert not any(module._forward_pre_hooks for module in model.modules())
