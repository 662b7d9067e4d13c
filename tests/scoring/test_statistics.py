"""Statistics kept for later: saved, loaded, completed, and guarded against wrong use."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_score import images, network, sites, split
from torch import Tensor

import evoprune
from evoprune import Statistics
from evoprune.errors import SavedFileError, ScoringError
from evoprune.expression.tree import Expr
from evoprune.scoring.accumulate import SiteSums
from evoprune.scoring.accumulator import Accumulator, others, total
from evoprune.scoring.groups import Batch, Groups
from evoprune.scoring.plan import F, Need
from evoprune.scoring.sample import Drawing, level


def same(a: evoprune.Scores, b: evoprune.Scores) -> None:
    assert list(a) == list(b)
    for function in a:
        for site in a[function]:
            assert torch.equal(a[function][site], b[function][site]), (function, site)


def test_saved_and_loaded_they_give_the_same_scores(tmp_path: Path) -> None:
    names = ["xi_star", "di", "mmd", "xi_imagenet", "prod_g(ridge(abs(F+)))", "l1"]
    statistics = evoprune.gather(network(), names, images(), sites=sites())
    want = evoprune.score(network(), names, images(), sites=sites())
    statistics.save(tmp_path / "kept")
    loaded = Statistics.load(tmp_path / "kept")
    assert not any(path.suffix in (".pkl", ".pt") for path in (tmp_path / "kept").iterdir())
    same(evoprune.score(network(), names, sites=sites(), statistics=loaded), want)
    same(evoprune.score(network(), names, images(), sites=sites(), statistics=loaded), want)
    same(evoprune.score(network(), names, statistics=loaded), want)


def test_only_what_is_missing_is_gathered() -> None:
    data = images()
    first = evoprune.gather(network(), "xi_2", data, sites=sites())
    assert evoprune.gather(network(), "var_g(F-)", data, sites=sites(), statistics=first) is first
    more = evoprune.gather(network(), ["xi_2", "mean_g(var_s(F))"], data, sites=sites(), statistics=first)
    kinds = [[str(each.need) for each in site.gathered] for site in more.sites.values()]
    assert all(sorted(k) == sorted({*k}) and len(k) == 2 for k in kinds)
    old, new = first.sites["0"].gathered[0], more.sites["0"].find(Need("moments", F, True, True))
    assert new is old
    want = evoprune.score(network(), ["xi_2", "mean_g(var_s(F))"], data, sites=sites())
    same(evoprune.score(network(), ["xi_2", "mean_g(var_s(F))"], sites=sites(), statistics=more), want)


def test_what_is_missing_without_data_is_named() -> None:
    statistics = evoprune.gather(network(), "xi_2", images(), sites=sites())
    with pytest.raises(ScoringError, match=r"lack, at site '0', pixel moments of F"):
        evoprune.score(network(), "xi_star", sites=sites(), statistics=statistics)
    with pytest.raises(ScoringError, match="no sample"):
        evoprune.score(network(), "mmd", sites=sites(), statistics=statistics)


def test_a_site_they_do_not_hold_is_named() -> None:
    statistics = evoprune.gather(network(), "xi_2", images(), sites=sites()[:1])
    with pytest.raises(ScoringError, match="hold no site '3'; they have 0"):
        evoprune.score(network(), "count_s(F+)", sites=sites(), statistics=statistics)


def test_other_weights_or_other_data_are_refused() -> None:
    statistics = evoprune.gather(network(), "xi_2", images(), sites=sites())
    changed = copy.deepcopy(network())
    with torch.no_grad():
        changed[0].weight[0, 0, 0, 0] += 1e-9  # type: ignore[index]
    with pytest.raises(ScoringError, match="other weights"):
        evoprune.score(changed, "xi_2", sites=sites(), statistics=statistics)
    inputs, labels = images()
    shifted = labels.clone()
    shifted[3] = (shifted[3] + 1) % 3
    for other in [(inputs * 2, labels), (inputs[:16], labels[:16]), (inputs, shifted)]:
        for function in ("xi_star", "xi_2"):  # of which one is known
            with pytest.raises(ScoringError, match="other data"):
                evoprune.score(network(), function, other, sites=sites(), statistics=statistics)
    for change in ("buffer", "kind", "setting"):
        changed = copy.deepcopy(network())
        if change == "buffer":
            changed[0].register_buffer("mean", torch.zeros(()), persistent=False)  # type: ignore[union-attr, operator]
        elif change == "kind":
            changed[4] = torch.nn.ReLU()
        else:
            changed[1].eps = 0.5  # type: ignore[union-attr, assignment]
        with pytest.raises(ScoringError, match="another network"):
            evoprune.score(changed, "xi_2", sites=sites(), statistics=statistics)


def test_another_site_of_the_same_name_is_refused() -> None:
    statistics = evoprune.gather(network(), "xi_2", images(), sites=sites())
    other = dataclasses.replace(sites()[0], map_size=(1, 4))
    with pytest.raises(ScoringError, match="another site '0'"):
        evoprune.score(network(), "xi_2", sites=[other], statistics=statistics)


def test_statistics_without_labels_say_so() -> None:
    statistics = evoprune.gather(
        network(), ["mean_activation", "sum_g(rbf(F, F))"], images()[0], sites=sites()
    )
    for function in ("count_s(F+)", "mmd", "xi_star"):
        with pytest.raises(ScoringError, match="need labels"):
            evoprune.score(network(), function, sites=sites(), statistics=statistics)


def test_what_autocast_gathered_is_not_mixed_with_other(tmp_path: Path) -> None:
    model, (inputs, labels) = copy.deepcopy(network()).float(), images()
    data = inputs.float(), labels
    evoprune.gather(model, "xi_2", data, sites=sites(), autocast=True).save(tmp_path)
    statistics = Statistics.load(tmp_path)
    assert evoprune.score(model, "xi_2", data, sites=sites(), statistics=statistics)
    with pytest.raises(ScoringError, match="gathered with autocast=True"):
        evoprune.score(model, "xi_star", data, sites=sites(), statistics=statistics)


def test_the_digest_of_data_knows_their_shape() -> None:
    inputs = torch.zeros(6, 2, 4, 3)
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 1), torch.nn.Conv2d(3, 1, 1))
    digests = {
        evoprune.gather(model, "mean_activation", each).data for each in (inputs, inputs.transpose(2, 3))
    }
    assert len(digests) == 2


def test_the_digest_of_data_does_not_depend_on_batches() -> None:
    whole = evoprune.gather(network(), "xi_2", images(), sites=sites())
    for sizes in ([1], [5, 5], [16]):
        part = evoprune.gather(network(), "xi_2", split(images(), sizes), sites=sites())
        assert part.data == whole.data


@pytest.mark.parametrize("damage", ["truncate", "flip", "foreign", "json", "facts", "missing"])
def test_damaged_files_are_refused(tmp_path: Path, damage: str) -> None:
    evoprune.gather(network(), "xi_2", images(), sites=sites()).save(tmp_path)
    tensors, facts = tmp_path / "statistics.safetensors", tmp_path / "statistics.json"
    content = tensors.read_bytes()
    if damage == "truncate":
        tensors.write_bytes(content[:-8])
    elif damage == "flip":
        tensors.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    elif damage == "foreign":
        facts.write_text('{"format": "something else"}')
    elif damage == "facts":
        facts.write_text(facts.read_text().replace('"images": 17', '"images": 18'))
    elif damage == "json":
        facts.write_text(facts.read_text()[:-20])
    else:
        tensors.unlink()
    with pytest.raises(SavedFileError, match=r"statistics"):
        Statistics.load(tmp_path)


# The sums themselves


def batches(seed: int, sizes: list[int], classes: int, scale: float) -> tuple[Tensor, Tensor, list[slice]]:
    generator = torch.Generator().manual_seed(seed)
    count = sum(sizes)
    values = scale * torch.randn(count, 2, 3, dtype=torch.float64, generator=generator) + 5 * scale
    labels = torch.randint(classes, (count,), generator=generator)
    ends = np.cumsum(sizes)
    return values, labels, [slice(int(e - s), int(e)) for s, e in zip(sizes, ends, strict=True)]


def summed(need: Need, parts: list[tuple[Tensor, Tensor]], classes: int) -> Accumulator:
    sums = SiteSums([need], (1, 1), {})
    for values, labels in parts:
        assert sums.add(Batch(values, Groups(labels)))
    counts = torch.bincount(torch.cat([labels for _, labels in parts]), minlength=classes).double()
    (found,) = sums.finished(counts)
    return found


@given(
    seed=st.integers(0, 999),
    sizes=st.lists(st.integers(1, 7), min_size=2, max_size=6),
    classes=st.integers(2, 5),
    kind=st.sampled_from(["moments", "pixel moments"]),
    scale=st.sampled_from([1.0, 1e-3, 1e4]),
)
def test_moments_of_classes_their_total_and_the_others(
    seed: int, sizes: list[int], classes: int, kind: str, scale: float
) -> None:
    values, labels, parts = batches(seed, sizes, classes, scale)
    present = labels.unique()
    sums = summed(
        Need(kind, F, by_class=True, squares=True), [(values[p], labels[p]) for p in parts], classes
    )

    def direct(chosen: Tensor) -> tuple[Tensor, Tensor]:
        picked = values[chosen]
        mean = picked.mean((0, 2)) if kind == "moments" else picked.mean(0)
        around = picked - (mean[:, None] if kind == "moments" else mean)
        return mean, around.square().sum((0, 2) if kind == "moments" else 0)

    assert sums.count.tolist() == [int((labels == k).sum()) for k in range(classes)]
    for k in present.tolist():
        mean, squares = direct(labels == k)
        torch.testing.assert_close(sums.fields["mean"][k], mean, rtol=1e-12, atol=0)
        torch.testing.assert_close(sums.fields["squares"][k], squares, rtol=1e-10, atol=1e-12 * scale**2)
    mean, squares = direct(labels >= 0)
    together = total(sums)
    torch.testing.assert_close(together.fields["mean"][0], mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(together.fields["squares"][0], squares, rtol=1e-10, atol=1e-12 * scale**2)
    rest = others(sums)
    for k in present.tolist():
        if (labels != k).any():
            mean, squares = direct(labels != k)
            torch.testing.assert_close(rest.fields["mean"][k], mean, rtol=1e-12, atol=0)
            torch.testing.assert_close(rest.fields["squares"][k], squares, rtol=1e-10, atol=1e-12 * scale**2)


def test_others_do_not_cancel_beside_a_large_class() -> None:
    """The total minus a class of deviation 1e8 would leave nothing of the others' variance of 1e-6."""
    values = torch.cat([1e8 * torch.randn(50, 1, 4), 1e-3 * torch.randn(50, 1, 4)]).double()
    labels = torch.arange(100) // 50
    sums = summed(Need("moments", F, by_class=True, squares=True), [(values, labels)], 2)
    want = (values[50:] - values[50:].mean()).square().sum()
    torch.testing.assert_close(others(sums).fields["squares"][0, 0], want, rtol=1e-12, atol=0)


# The sample


def draw(labels: list[int], size: int, seed: int, sizes: list[int]) -> tuple[list[int], list[int]]:
    drawing = Drawing(size, seed)
    at = 0
    for step in [*sizes, len(labels)]:
        part = torch.tensor(labels[at : at + step])
        if len(part):
            drawing.add(torch.arange(at, at + len(part))[:, None].float(), part)
        at += step
    found = drawing.finish(labelled=True)
    assert found.classes is not None
    assert found.images[:, 0].tolist() == found.places.tolist()
    return found.places.tolist(), found.classes.tolist()


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=80),
    size=st.integers(1, 30),
    seed=st.integers(0, 50),
    sizes=st.lists(st.integers(1, 30), max_size=5),
)
def test_the_sample_is_balanced_seeded_and_independent_of_batches(
    labels: list[int], size: int, seed: int, sizes: list[int]
) -> None:
    places, classes = draw(labels, size, seed, sizes)
    assert len(places) == min(size, len(labels))
    assert places == sorted(set(places))
    assert [labels[p] for p in places] == classes
    counts = {k: labels.count(k) for k in set(labels)}
    fair = level(list(counts.values()), size)
    for k, count in counts.items():
        assert min(count, fair) <= classes.count(k) <= min(count, fair + 1)
    assert draw(labels, size, seed, []) == (places, classes)
    renamed = [(3 * k + 7) for k in labels]
    assert draw(renamed, size, seed, sizes)[0] == places


def test_another_seed_draws_another_sample() -> None:
    labels = [k % 3 for k in range(90)]
    assert draw(labels, 12, 0, []) != draw(labels, 12, 1, [])


def test_sources_are_expressions() -> None:
    statistics = evoprune.gather(network(), "var_g(sqrt(F))", images(), sites=sites())
    (gathered,) = statistics.sites["0"].gathered
    assert gathered.need.source == Expr("sqrt", (Expr("F"),))
    assert "3 sites, 17 images" in repr(statistics)
