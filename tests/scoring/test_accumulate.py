"""What a site gathers, against sums taken over all its maps at once in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_score import passing
from torch import Tensor, nn

import evoprune
from evoprune.expression.text import parse
from evoprune.scoring import accumulate, column_sums, execute, row_sums
from evoprune.scoring.accumulate import SiteSums
from evoprune.scoring.accumulator import Accumulator, others, total
from evoprune.scoring.groups import Batch, Groups
from evoprune.scoring.plan import Need
from evoprune.scoring.row_sums import PENDING

KINDS = ("moments", "pixel moments", "pixel moments with squares", "products", "pixel products", "scatter")
SOURCES = ("F", "abs(F)", "sqrt(F)", "sq(F)", "sub(F, B)", "div(F, B)")


def need_of(kind: str, source: str, by_class: bool) -> Need:
    squares = kind == "moments" or kind.endswith("with squares")
    return Need(kind.removesuffix(" with squares"), parse(source), by_class, squares)


def gathered(
    needs: list[Need], maps: Tensor, labels: Tensor, sizes: list[int], norm: Tensor, map_size: tuple[int, int]
) -> tuple[Accumulator, ...]:
    """What a site gathers of maps `[image, channel, pixel]` that come in batches of these sizes."""
    sums = SiteSums(needs, map_size, {"B": norm})
    ends = np.cumsum(sizes).tolist()
    for start, end in zip([0, *ends], [*ends, len(maps)], strict=True):
        if start < len(maps) and end > start:
            sums.add(Batch(maps[start:end], Groups(labels[start:end])))
    return sums.finished(torch.bincount(labels).double())


def values_of(source: str, maps: Tensor, norm: Tensor) -> Tensor:
    """A source by its definition, in float64: `[image, channel, pixel]`."""
    x = maps.double()
    columns = max(maps.shape[-1], norm.shape[-1])
    fill = 1.0 if source.startswith("div") else 0.0
    b = torch.full((norm.shape[1], columns), fill, dtype=torch.float64)
    b[:, : norm.shape[-1]] = norm[0]
    wide = torch.full((*x.shape[:2], columns), fill, dtype=torch.float64)
    wide[..., : x.shape[-1]] = x
    match source:
        case "abs(F)":
            return x.abs()
        case "sqrt(F)":
            return x.abs().sqrt()
        case "sq(F)":
            return x.square()
        case "sub(F, B)":
            return wide - b
        case "div(F, B)":
            return torch.where(b.abs() < 1e-12, 0.0, wide / b)
        case _:
            return x


def directly(kind: str, values: Tensor) -> dict[str, Tensor]:
    """The fields of one class's accumulator, from its values `[image, channel, column]`."""
    axes = (0, 2) if kind in ("moments", "products") else (0,)
    if kind.endswith("products"):
        product = values.prod(0)
        return {"product": product.prod(-1) if kind == "products" else product}
    mean = values.mean(axes, keepdim=True)
    found = {"mean": mean.squeeze(axes)}
    if kind == "scatter":
        around = (values - mean).permute(1, 2, 0)
        found["scatter"] = around @ around.transpose(1, 2)
    elif kind != "pixel moments":
        found["squares"] = (values - mean).square().sum(axes)
    return found


def fields_of(found: Accumulator, row: int) -> dict[str, Tensor]:
    if "product" in found.fields:
        return {"product": found.fields["product"][row]}
    fields = {"mean": found.mean()[row]}
    if "scatter" in found.fields:
        sums = found.fields["sum"][row]
        fields["scatter"] = (
            found.fields["scatter"][row] - sums[..., None] * sums[..., None, :] / found.count[row]
        )
    elif "squares" in found.fields:
        fields["squares"] = found.fields["squares"][row]
    return fields


@given(
    kind=st.sampled_from(KINDS),
    source=st.sampled_from(SOURCES),
    by_class=st.booleans(),
    layout=st.sampled_from(["channels first", "channels last", "some of the channels"]),
    map_size=st.sampled_from([(1, 1), (2, 2), (1, 7), (6, 6)]),
    signed=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    order=st.sampled_from(["mixed", "sorted"]),
    sizes=st.lists(st.integers(1, 40), max_size=6),
    at_once=st.sampled_from([16, 2**20]),
    many=st.sampled_from([1, 64]),
    seed=st.integers(0, 99),
)
def test_what_a_site_gathers_is_what_its_maps_add_up_to(
    kind: str,
    source: str,
    by_class: bool,
    layout: str,
    map_size: tuple[int, int],
    signed: bool,
    dtype: torch.dtype,
    order: str,
    sizes: list[int],
    at_once: int,
    many: int,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    images, channels = 60, 3
    values = torch.randn(images, 5, *map_size, generator=generator, dtype=dtype)
    values = values if signed else values.relu()
    if layout == "channels last":
        values = values.contiguous(memory_format=torch.channels_last)
    maps = values[:, 1:4].flatten(2) if layout == "some of the channels" else values[:, :3].flatten(2).clone()
    labels = torch.randint(4, (images,), generator=generator)
    labels = labels.sort().values if order == "sorted" else labels
    norm = torch.tensor([[[0.5, 0.0, -2.0, 3.0]]], dtype=torch.float64).expand(1, channels, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accumulate, "CHUNK", at_once)
        patch.setattr(execute, "MANY", at_once)
        patch.setattr(column_sums, "FEW", 8)
        patch.setattr(column_sums, "MANY", many)
        patch.setattr(row_sums, "PENDING", at_once)
        (found,) = gathered([need_of(kind, source, by_class)], maps, labels, sizes, norm, map_size)
    want = values_of(source, maps, norm)
    assert found.width == want.shape[-1]
    close = {"rtol": 1e-9, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 2e-5, "atol": 2e-5}
    for row in range(4 if by_class else 1):
        of_row = want[labels == row] if by_class else want
        assert found.count[row] == len(of_row)
        if len(of_row):
            got = fields_of(found, row)
            for name, value in directly(kind, of_row).items():
                torch.testing.assert_close(got[name], value, **close)


def test_all_needs_together_are_what_each_is_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    maps, labels = torch.randn(50, 3, 16, generator=generator).relu(), torch.arange(50) % 3
    norm = torch.rand(1, 3, 4, dtype=torch.float64, generator=generator)
    needs = [need_of(kind, source, True) for kind in KINDS for source in SOURCES]
    together = gathered(needs, maps, labels, [20, 20], norm, (4, 4))
    assert {each.need for each in together} == set(needs)
    for each in together:
        (alone,) = gathered([each.need], maps, labels, [20, 20], norm, (4, 4))
        for name, value in alone.fields.items():
            torch.testing.assert_close(each.fields[name], value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["moments", "pixel moments with squares"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", [[1, 128, 300], [37, 200], [100]])
def test_equal_maps_deviate_by_exactly_nothing(kind: str, dtype: torch.dtype, sizes: list[int]) -> None:
    """Whatever their number, the chunks they come in, and how their sums are rounded."""
    maps = torch.full((700, 2, 36), 0.1, dtype=dtype)
    maps[:, 1] = 1234.567
    labels = torch.arange(700) % 3
    for by_class in (True, False):
        need = need_of(kind, "F", by_class)
        (found,) = gathered([need], maps, labels, sizes, torch.zeros(1, 2, 4), (6, 6))
        for view in (found, total(found), others(found) if by_class else found):
            assert not view.fields["squares"].any()


@pytest.mark.parametrize("row", [0, 100])
def test_many_images_of_a_class_keep_the_digits_of_single_precision(row: int) -> None:
    """One float32 sum of 20,000 equal squares would be off by 1e-4; an outlier comes first."""
    generator = torch.Generator().manual_seed(0)
    maps = 5 + torch.randn(20_000, 1, 4, generator=generator)
    maps[0] = 1000.0
    labels = torch.full((20_000,), row)
    needs = [need_of("pixel moments with squares", "F", True), need_of("pixel moments", "F", True)]
    moments, sums = gathered(needs, maps, labels, [1000] * 19, torch.zeros(1, 1, 4), (2, 2))
    want = directly("pixel moments with squares", maps.double())
    torch.testing.assert_close(moments.fields["squares"][row], want["squares"], rtol=1e-6, atol=0)
    torch.testing.assert_close(moments.mean()[row], want["mean"], rtol=1e-7, atol=0)
    torch.testing.assert_close(sums.mean()[row], want["mean"], rtol=1e-6, atol=0)


def test_squares_that_overflow_are_taken_in_float64() -> None:
    maps = torch.tensor([1e25, -1e25, 2e25, 3e25]).repeat(6, 2, 1)
    (found,) = gathered(
        [need_of("moments", "F", False)], maps, torch.zeros(6).long(), [4], torch.zeros(1, 2, 4), (2, 2)
    )
    want = directly("moments", maps.double())
    torch.testing.assert_close(found.fields["squares"][0], want["squares"], rtol=1e-6, atol=0)


def test_a_class_that_comes_late_has_its_own_product() -> None:
    """The others' are 0 by then, and are not looked at any more."""
    maps = torch.full((300, 1, 4), 2.0)
    maps[5:250] = 0.0
    labels = (torch.arange(300) >= 290).long()
    for kind, power in (("products", 40), ("pixel products", 10)):
        (found,) = gathered(
            [need_of(kind, "F", True)], maps, labels, [100, 100], torch.zeros(1, 1, 4), (2, 2)
        )
        assert not found.fields["product"][0].any()
        assert (found.fields["product"][1] == 2.0**power).all()


def test_what_is_zero_is_not_read_again() -> None:
    reads = []
    need = need_of("pixel products", "F", True)
    sums = column_sums.column_sums(need, torch.zeros(4, 2, 9))
    for _ in range(3):
        groups = Groups(torch.tensor([0, 1, 1, 0]))
        sums.add(lambda: reads.append(1) or torch.zeros(4, 2, 9), groups)
    assert len(reads) == 1


def test_few_images_wait_to_be_merged_however_many_come() -> None:
    """What waits at every site of a deep network is most of what scoring holds beside the network."""
    sums = SiteSums([need_of("moments", "F", True)], (1, 3), {})
    waiting = []
    for seed in range(60):
        values = torch.randn(400, 16, 3, generator=torch.Generator().manual_seed(seed))
        assert sums.add(Batch(values, Groups(torch.arange(400) % 3)))
        waiting.append(sums.waiting)
    assert 0 < max(waiting) <= PENDING < 60 * 400 * 16


@pytest.mark.parametrize("where", ["F", "sum"])
def test_what_is_not_finite_is_told(where: str) -> None:
    maps = torch.ones(6, 2, 4)
    maps[3, 1, 2] = torch.nan if where == "F" else 3e38
    maps[3, 1, 3] = 3e38
    for kind in KINDS:
        sums = SiteSums([need_of(kind, "F", True)], (2, 2), {})
        assert sums.add(Batch(torch.ones(6, 2, 4), Groups(torch.arange(6))))
        assert not sums.add(Batch(maps, Groups(torch.arange(6))))


# The kernels that large tensors take another way through


@given(
    shape=st.sampled_from([(1, 3, 20, 6), (1, 3, 1, 6), (1, 1, 1, 1)]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    special=st.sampled_from([0.0, 1e-12, 9.9e-13, -1e-13, 1e-40, torch.inf, -torch.inf, torch.nan]),
    over=st.sampled_from([0.0, -3.0, torch.inf, torch.nan]),
    seed=st.integers(0, 20),
)
def test_a_large_quotient_is_a_small_one(
    shape: tuple[int, ...], dtype: torch.dtype, special: float, over: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, 3, 20, 6, generator=generator, dtype=dtype)
    y = torch.randn(shape, generator=generator, dtype=dtype)
    x[0, 1, ::3], y.view(-1)[::2] = over, special
    small = execute.quotient(x, y)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execute, "MANY", 1)
        large = execute.quotient(x, y)
    torch.testing.assert_close(large, small, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_roots_are_the_same_on_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    x = torch.cat([torch.randn(2**16, dtype=dtype), torch.tensor([0.0, -0.0, 4.0, torch.inf], dtype=dtype)])
    found = []
    for threads in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        found.append(execute.root(x))
    torch.testing.assert_close(found[1], found[0], rtol=4 * torch.finfo(dtype).eps, atol=0)
    assert found[1][-4:].tolist() == [0.0, 0.0, 2.0, torch.inf]


# How images lie in memory


class Viewing(nn.Module):
    """Takes no images with channels last: `view` refuses to mix what lies apart."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(2, 4, 2), nn.Linear(16, 3)
        self.seen: list[tuple[int, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append((len(x), x.is_contiguous(memory_format=torch.channels_last)))
        y = self.conv(x)
        return self.out(torch.relu(y).view(len(x), 16))


def test_a_network_that_takes_no_channels_last_is_scored_all_the_same() -> None:
    torch.manual_seed(0)
    model, x, y = Viewing().double(), torch.randn(20, 2, 3, 3).double(), torch.arange(20) % 2
    sites = evoprune.sites(model, x[:1])
    model.seen.clear()
    scores = evoprune.score(model, "xi_star", (x, y), sites=sites, batch_size=8)
    assert model.seen == [(2, True), (8, False), (8, False), (4, False)]
    maps = torch.relu(model.conv(x)).detach()
    want = evoprune.score_arrays("xi_star", maps, y, dtype="float64")
    np.testing.assert_allclose(scores["xi_star"]["conv"], want, rtol=1e-9)


def test_scores_do_not_depend_on_how_images_lie_in_memory() -> None:
    inputs = torch.randn(30, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    model, site = passing(inputs)
    labels = torch.arange(30) % 3
    names = ["xi_star", "xi_imagenet", "mean_g(var_s(F+))", "prod_g(abs(F+))", "mmd"]
    found = [
        evoprune.score(model, names, (each, labels), sites=[site])
        for each in (inputs, inputs.contiguous(memory_format=torch.channels_last))
    ]
    for name in names:
        torch.testing.assert_close(found[0][name][site.name], found[1][name][site.name], rtol=1e-6, atol=0)
