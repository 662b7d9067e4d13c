"""Data by name and from folders: the right images in the right split, and clear refusals."""

from __future__ import annotations

import io
import os
import socket
from itertools import pairwise
from pathlib import Path

import layouts
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet

from evoprune.errors import ConfigError, DataError
from evoprune.tasks import datasets, embedded, finding, sources
from evoprune.tasks.batches import (
    Batches,
    HeldSplit,
    Normalisation,
    StreamedSplit,
    augmented,
    pixels,
    stream_order,
)
from evoprune.tasks.datasets import DataConfig, load_data, stratified


def raw(split: HeldSplit) -> set[bytes]:
    return {image.numpy().tobytes() for image in split.images}


def held(images: list[np.ndarray]) -> set[bytes]:
    return {np.ascontiguousarray(image.transpose(2, 0, 1)).tobytes() for image in images}


# --- splits ---------------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 6), min_size=2, max_size=200),
    st.floats(0.05, 0.95),
    st.integers(0, 5),
)
def test_a_stratified_split_is_a_partition_in_proportion(labels: list[int], share: float, seed: int) -> None:
    array = np.asarray(labels, np.int64)
    wanted = round(share * len(array))
    if not 0 < wanted < len(array):
        with pytest.raises(DataError, match="cannot split"):
            stratified(array, share, seed)
        return
    chosen, rest = stratified(array, share, seed)
    assert len(chosen) == wanted
    assert sorted([*chosen, *rest]) == list(range(len(array)))
    for label in set(labels):
        exact = (array == label).sum() * wanted / len(array)
        assert abs((array[chosen] == label).sum() - exact) < 1
    again, _ = stratified(array, share, seed)
    assert (again == chosen).all()


def test_another_seed_splits_differently() -> None:
    labels = np.arange(100) % 4
    assert (stratified(labels, 0.3, 0)[0] != stratified(labels, 0.3, 1)[0]).any()


@pytest.mark.parametrize("name", ["digits", "shapes"])
def test_embedded_sets_split_without_overlap(name: str) -> None:
    data = load_data(name)
    splits = [data.train, data.validation, data.test]
    sets = [raw(split) for split in splits]  # type: ignore[arg-type]
    assert sum(map(len, sets)) >= 0.99 * sum(map(len, splits)), "hardly any image twice"
    assert not sets[0] & sets[1] and not sets[0] & sets[2] and not sets[1] & sets[2]
    assert len(data.classes) == 10
    for split in splits:
        counts = torch.bincount(split.labels, minlength=10)
        assert counts.min() > 0.8 * counts.max()
    images, _ = next(iter(Batches(data.train, len(data.train))))
    assert abs(images.mean()) < 0.1 and abs(images.std() - 1) < 0.1
    assert load_data(name).key == data.key
    assert load_data(DataConfig(name, split_seed=1)).key != data.key


def test_digits_are_those_of_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.datasets").load_digits()
    images, labels = embedded.digits()
    assert (images[:, 0] == sklearn.images * 15).all()
    assert (labels == sklearn.target).all()


def test_shapes_do_not_depend_on_the_global_generator() -> None:
    first = embedded.shapes(50, seed=3)[0]
    np.random.seed(1)  # noqa: NPY002
    assert (embedded.shapes(50, seed=3)[0] == first).all()
    assert (embedded.shapes(50, seed=4)[0] != first).any()


def test_a_subset_takes_nothing_from_validation() -> None:
    whole, part = load_data("digits"), load_data(DataConfig("digits", images=100))
    assert len(part.train) == 100
    assert (part.validation.labels == whole.validation.labels).all()
    assert raw(part.train) <= raw(whole.train)  # type: ignore[arg-type]


# --- named sets in the hub's layout -----------------------------------------------------------------------


def test_cifar100_reads_img_and_fine_label(tmp_path: Path) -> None:
    data = load_data("cifar100", folder=layouts.cifar100(tmp_path))
    assert len(data.classes) == 100 and data.classes[7] == "class 7"
    assert data.shape == (3, 32, 32)
    assert (len(data.train), len(data.validation), len(data.test)) == (360, 40, 100)
    assert int(data.train.labels.max()) == 99
    written = held(layouts.pictures(400, (32, 32, 3), seed=400))
    assert raw(data.train) | raw(data.validation) == written  # type: ignore[arg-type]
    coarse = load_data(DataConfig("cifar100", label="coarse_label"), folder=tmp_path)
    assert len(coarse.classes) == 20


def test_svhn_trains_with_its_extra_split(tmp_path: Path) -> None:
    root = layouts.svhn(tmp_path)
    data = load_data("svhn", folder=root)
    assert len(data.train) + len(data.validation) == 100
    without = load_data(DataConfig("svhn", extra=False), folder=root)
    assert len(without.train) + len(without.validation) == 40
    assert len(data.test) == len(without.test) == 20
    (root / "svhn/cropped_digits/extra-00001-of-00002.parquet").unlink()
    with pytest.raises(DataError, match=r"'extra' has 2 files, but 1 are not there"):
        load_data("svhn", folder=root)


def test_svhn_without_the_extra_split_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="lacks the split extra; `extra = false`"):
        load_data("svhn", folder=layouts.svhn(tmp_path, extra=0))


def test_a_local_copy_without_its_test_split_says_so(tmp_path: Path) -> None:
    (layouts.plain(tmp_path, "mnist", (28, 28)) / "mnist" / "test.parquet").unlink()
    data = load_data("mnist", folder=tmp_path)
    with pytest.raises(DataError, match="mnist lacks the split test"):
        _ = data.test


SHARDS = ["data/{split}-0000{n}-of-00002-b4d1ea2c.parquet", "mnist/{split}/000{n}.parquet"]


@pytest.mark.parametrize("names", SHARDS, ids=["with a hash", "converted by the hub"])
def test_other_names_of_shards_are_the_same_data(names: str, tmp_path: Path) -> None:
    for name in (SHARDS[0].replace("-b4d1ea2c", ""), names):
        root = tmp_path / ("other" if name == names else "usual") / "mnist"
        for seed, split in enumerate(("train", "test", "train", "test")):
            images, labels = layouts.pictures(40, (28, 28), seed), {"label": [*range(10)] * 4}
            layouts.write_parquet(root / name.format(split=split, n=seed // 2), images, labels)
    usual, other = (load_data("mnist", folder=tmp_path / folder) for folder in ("usual", "other"))
    assert (len(usual.train), len(usual.test)) == (72, 80)
    assert (usual.key, usual.test.key()) == (other.key, other.test.key())


def test_shards_that_are_twice_there_are_refused(tmp_path: Path) -> None:
    images, labels = layouts.pictures(10, (28, 28)), {"label": [*range(10)]}
    for name in ("00000-of-00001", "00000-of-00002", "00001-of-00002"):
        layouts.write_parquet(tmp_path / "mnist" / f"train-{name}.parquet", images, labels)
    with pytest.raises(DataError, match="'train' has 2 files, but 3 are there: some twice"):
        load_data("mnist", folder=tmp_path)
    with pytest.raises(DataError, match="There is: digits, shapes, mnist"):
        load_data("nothing", folder=tmp_path)


@pytest.mark.parametrize(
    ("labels", "says"),
    [([0.5, 1.0] * 5, "must hold whole numbers.*double"), ([0, None] * 5, "lacks the labels of 5 images")],
)
def test_labels_are_not_made_up(labels: list[float | None], says: str, tmp_path: Path) -> None:
    layouts.write_parquet(tmp_path / "train.parquet", layouts.pictures(10, (8, 8)), {"label": [0, 1] * 5})
    table = parquet.read_table(tmp_path / "train.parquet")
    parquet.write_table(table.set_column(1, "label", [labels]), tmp_path / "train.parquet")
    with pytest.raises(DataError, match=says):
        load_data(str(tmp_path))


def test_svhn_prefers_its_cropped_digits(tmp_path: Path) -> None:
    root = layouts.svhn(layouts.svhn(tmp_path), config="a_first_in_the_alphabet", extra=200)
    assert len(load_data("svhn", folder=root).train) == 90


@pytest.mark.parametrize("workers", [0, 2])
def test_imagenet_streams_with_its_transforms(tmp_path: Path, workers: int) -> None:
    root = layouts.imagenet(tmp_path)
    data = load_data(DataConfig("imagenet-1k", workers=workers), folder=root)
    assert isinstance(data.train, StreamedSplit)
    assert len(data.classes) == 1000
    assert (len(data.train), len(data.validation), len(data.test)) == (54, 6, 20)
    assert set(data.test.labels.tolist()) == {label * 100 for label in range(10)}
    state = torch.get_rng_state()
    batches = list(data.train.shuffled(16, seed=1, augment="resized-crop-flip"))
    assert [tuple(images.shape) for images, _ in batches] == [(16, 3, 224, 224)] * 3
    assert torch.equal(torch.get_rng_state(), state), "the global generator is left alone"
    ordered = torch.cat([labels for _, labels in Batches(data.train, 16)])
    assert torch.equal(ordered, data.train.labels)


def test_streamed_epochs_depend_on_the_seed_and_not_on_the_workers(tmp_path: Path) -> None:
    root = layouts.imagenet(tmp_path)

    def epoch(workers: int, seed: int) -> torch.Tensor:
        config = DataConfig("imagenet-1k", workers=workers, image_size=32)
        split = load_data(config, folder=root).train
        return torch.cat([images for images, _ in split.shuffled(8, seed=seed, augment="resized-crop-flip")])

    assert torch.equal(epoch(0, 1), epoch(2, 1))
    assert not torch.equal(epoch(0, 1), epoch(0, 2))


def test_each_streamed_image_is_cut_for_itself(tmp_path: Path) -> None:
    picture = layouts.pictures(1, (64, 64, 3))
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(12):
            (tmp_path / name / f"{number}.png").write_bytes(layouts.png(picture[0]))
    train = load_data(DataConfig(str(tmp_path), streamed=True, image_size=16, workers=0)).train
    epochs = [next(train.shuffled(12, seed=seed, augment="resized-crop-flip"))[0] for seed in (0, 1)]
    crops = {image.numpy().tobytes() for epoch in epochs for image in epoch}
    assert len(crops) == 24, "another part of the one picture each time"


def test_streamed_images_are_decoded_in_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layouts.class_folders(tmp_path, {"a": 10, "b": 10})

    def tell(self: object, rows: object) -> list[bytes]:
        raise DataError(f"process {os.getpid()}")

    for workers in (0, 1):
        train = load_data(DataConfig(str(tmp_path), streamed=True, image_size=8, workers=workers)).train
        with monkeypatch.context() as patch, pytest.raises(DataError) as caught:
            patch.setattr(sources.FolderRows, "encoded", tell)
            next(train.ordered(4))
        assert (str(caught.value) == f"process {os.getpid()}") == (workers == 0)


def test_the_middle_is_cut_out_for_evaluation(tmp_path: Path) -> None:
    """A wide image: black, with a white square in its middle, comes out white in the middle."""
    canvas = np.zeros((64, 128, 3), np.uint8)
    canvas[16:48, 48:80] = 255
    for split in ("train", "validation"):
        layouts.write_parquet(
            tmp_path / "imagenet-1k" / f"{split}.parquet", [canvas] * 10, {"label": [0, 1] * 5}
        )
    config = DataConfig("imagenet-1k", normalise="none", workers=0, validation=0.2)
    images, _ = next(iter(Batches(load_data(config, folder=tmp_path).test, 1)))
    # Scaled to 256×512, cut to the middle 224: the square spans (112 ± 64) of 224 pixels.
    assert images[0, :, 60:164, 60:164].min() > 0.99
    assert images[0, :, :40].max() < 0.01 and images[0, :, :, :40].max() < 0.01


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(1, 8), st.integers(0, 3))
def test_streamed_order_gives_every_row_at_most_once(sizes: list[int], batch: int, seed: int) -> None:
    edges = np.cumsum([0, *sizes])
    groups = [np.arange(a, b) for a, b in pairwise(edges)]
    batches = stream_order(groups, batch, np.random.default_rng(seed), lanes=3)
    rows = np.concatenate(batches)
    assert len(set(rows.tolist())) == len(rows)
    assert len(rows) == (edges[-1] // batch * batch or edges[-1])
    assert all(len(b) == batch for b in batches) or len(batches) == 1


def test_a_copy_from_the_hub_is_the_same_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` reads a local folder in the hub's layout as it reads the hub."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    root = layouts.cifar100(tmp_path)
    readme = "---\nconfigs:\n- config_name: cifar100\n  data_files:\n"
    for split in ("train", "test"):
        readme += f"  - split: {split}\n    path: cifar100/{split}-*\n"
    (root / "cifar100" / "README.md").write_text(readme + "---\n")
    named = finding.NAMED["cifar100"]
    import dataclasses

    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    local = dataclasses.replace(named, hub=str(root / "cifar100"))
    monkeypatch.setitem(finding.NAMED, "cifar100", local)
    hub = load_data("cifar100", folder=tmp_path / "nowhere")
    copied = load_data("cifar100", folder=root)
    assert hub.key == copied.key
    assert hub.classes == copied.classes
    assert hub.test.key() == copied.test.key()


def test_a_hub_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a proxy that refuses, `datasets` itself would try again for half a minute."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: pytest.fail("it was asked"))
    with pytest.raises(DataError, match=r"no network: 127\.0\.0\.1: .*refused"):
        load_data("cifar100", folder=tmp_path)


def test_without_network_and_copy_the_error_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_address(*_: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_address)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.delenv("HTTPS_PROXY", raising=False)
    monkeypatch.delenv("https_proxy", raising=False)
    with pytest.raises(DataError) as caught:
        load_data("cifar100", folder=tmp_path)
    for part in (str(tmp_path / "cifar100"), "hf download uoft-cs/cifar100", "EVOPRUNE_DATA", "digits"):
        assert part in str(caught.value)


# --- folders --------------------------------------------------------------------------------------------


def test_class_folders_with_train_and_test(tmp_path: Path) -> None:
    layouts.class_folders(tmp_path / "train", {"cat": 20, "dog": 30})
    layouts.class_folders(tmp_path / "test", {"dog": 5})
    data = load_data(str(tmp_path))
    assert data.classes == ("cat", "dog")
    assert (len(data.train), len(data.validation), len(data.test)) == (45, 5, 5)
    assert set(data.test.labels.tolist()) == {1}, "the training images number the classes"


def test_class_folders_alone_put_a_test_away(tmp_path: Path) -> None:
    data = load_data(str(layouts.class_folders(tmp_path, {"a": 50, "b": 50}, shape=(10, 10))))
    assert data.shape == (1, 10, 10), "grey images have one channel"
    sets = [raw(split) for split in (data.train, data.validation, data.test)]  # type: ignore[arg-type]
    assert list(map(len, sets)) == [72, 8, 20]
    assert len(set.union(*sets)) == 100


def test_the_test_images_stay_the_same_whatever_the_validation_split(tmp_path: Path) -> None:
    root = str(layouts.class_folders(tmp_path, {"a": 50, "b": 50}))
    one, other = load_data(root), load_data(DataConfig(root, split_seed=1, validation=0.3))
    assert one.test.key() == other.test.key()
    assert one.validation.key() != other.validation.key()


def test_a_folder_is_streamed_where_that_is_asked_for(tmp_path: Path) -> None:
    layouts.class_folders(tmp_path, {"a": 30, "b": 30}, shape=(40, 50, 3))
    how = {"image_size": 16, "normalise": "half", "workers": 1}
    held, streamed = (load_data(DataConfig(str(tmp_path), **how, streamed=s)) for s in (False, True))  # type: ignore[arg-type]
    assert isinstance(held.train, HeldSplit) and isinstance(streamed.train, StreamedSplit)
    for a, b in ((held.train, streamed.train), (held.test, streamed.test)):
        assert all(torch.equal(x, y) for x, y in zip(next(a.ordered(99)), next(b.ordered(99)), strict=True))
    with pytest.raises(DataError, match=r"data\.streamed = true"):
        next(held.train.shuffled(8, seed=0, augment="resized-crop-flip"))
    images, _ = next(streamed.train.shuffled(8, seed=0, augment="resized-crop-flip"))
    assert images.shape == (8, 3, 16, 16)
    with pytest.raises(DataError, match="streamed are for images in files"):
        load_data(DataConfig("digits", streamed=True))


def test_the_mean_is_of_all_classes() -> None:
    """Files lie class by class: the first ten thousand images may be all of one."""
    images = torch.cat([torch.zeros(12_000, 1, 1, 1), torch.full((12_000, 1, 1, 1), 255)]).byte()
    assert datasets._measured(images) == Normalisation((0.5,), (0.5,))


def test_a_folder_in_the_data_root_is_found_by_its_name(tmp_path: Path) -> None:
    images, labels = layouts.pictures(30, (8, 8, 3)), {"label": [0, 1, 2] * 10}
    layouts.write_parquet(tmp_path / "mine" / "train.parquet", images, labels)
    assert load_data("mine", folder=tmp_path).shape == (3, 8, 8)
    with pytest.raises(
        DataError, match=r"'mnie'. Did you mean 'mine'\? There is: digits, shapes, mnist.*mine"
    ):
        load_data("mnie", folder=tmp_path)


def test_images_of_many_sizes_need_a_size(tmp_path: Path) -> None:
    layouts.class_folders(tmp_path / "a", {"x": 10}, shape=(10, 14, 3))
    for number, array in enumerate(layouts.pictures(10, (20, 16, 3))):
        (tmp_path / "b").mkdir(exist_ok=True)
        (tmp_path / "b" / f"{number}.png").write_bytes(layouts.png(array))
    with pytest.raises(DataError, match=r"several sizes \(14×10, 16×20, …\).*image_size"):
        load_data(str(tmp_path))
    assert load_data(DataConfig(str(tmp_path), image_size=12)).shape == (3, 12, 12)


def test_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "notes.txt").write_text("x")
    with pytest.raises(DataError, match="it holds nothing"):
        load_data(str(tmp_path / "empty"))
    with pytest.raises(DataError, match=r"train\.parquet.*it holds notes\.txt"):
        load_data(str(tmp_path / "text"))

    images = layouts.pictures(10, (8, 8, 3))
    layouts.write_parquet(tmp_path / "col" / "train.parquet", images, {"klass": [0, 1] * 5})
    with pytest.raises(
        DataError, match="expected a column label or fine_label or labels, there is image, klass"
    ):
        load_data(str(tmp_path / "col"))
    layouts.write_parquet(tmp_path / "one" / "train.parquet", images, {"label": [0] * 10})
    with pytest.raises(DataError, match="has 1 class"):
        load_data(str(tmp_path / "one"))
    layouts.write_parquet(tmp_path / "neg" / "train.parquet", images, {"label": [-1, 1] * 5})
    with pytest.raises(DataError, match="labels from -1 to 1, expected 0 to 1"):
        load_data(str(tmp_path / "neg"))
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "train.parquet").write_bytes(b"PAR1 nonsense PAR1")
    with pytest.raises(DataError, match=r"bad/train\.parquet cannot be read as parquet"):
        load_data(str(tmp_path / "bad"))
    layouts.write_parquet(tmp_path / "mnist" / "train.parquet", images, {"label": [0, 1] * 5})
    layouts.write_parquet(tmp_path / "mnist" / "test.parquet", images, {"label": [0, 1] * 5})
    with pytest.raises(DataError, match="expected 28×28 pixels, got 8×8"):
        load_data("mnist", folder=tmp_path)


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    for split in ("train", "test"):
        layouts.class_folders(tmp_path / split, {"a": 10, "b": 10})
    broken = tmp_path / "train" / "b" / "004.png"
    broken.write_bytes(broken.read_bytes()[:60])
    with pytest.raises(DataError, match=r"train/b/004\.png: the image is damaged"):
        load_data(str(tmp_path))
    broken.write_text("not an image")
    with pytest.raises(DataError, match=r"train/b/004\.png: not an image of a known kind \(12 bytes\)"):
        load_data(str(tmp_path))


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_wrong_with_a_streamed_image_is_told_without_a_traceback(
    workers: int, tmp_path: Path
) -> None:
    layouts.class_folders(tmp_path / "train", {"a": 20, "b": 20})
    config = DataConfig(str(tmp_path), streamed=True, image_size=8, workers=workers)
    train = load_data(config).train
    assert isinstance(train, StreamedSplit)
    path = Path(train.rows.where(int(train.places[5])))
    content = path.read_bytes()
    for damage, says in ((content[:60], "the image is damaged"), (b"x", "not an image of a known kind")):
        path.write_bytes(damage)
        with pytest.raises(DataError, match=says) as caught:
            list(train.ordered(8))
        assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(DataError, match=f"{path} cannot be read: No such file"):
        list(train.ordered(8))


def test_an_image_of_another_size_among_many_is_named(tmp_path: Path) -> None:
    images = layouts.pictures(30, (28, 28))
    images[17] = layouts.pictures(1, (30, 26))[0]
    for split in ("train", "test"):
        path = tmp_path / "mnist" / f"{split}.parquet"
        layouts.write_parquet(path, images, {"label": [*range(10)] * 3})
    with pytest.raises(
        DataError, match="mnist train, image 17: expected 28×28 pixels, got 26×30; image_size"
    ):
        load_data("mnist", folder=tmp_path)


def test_a_class_without_images_is_not_left_out_in_silence(tmp_path: Path) -> None:
    layouts.class_folders(tmp_path, {"a": 10, "b": 10})
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "notes.txt").write_text("soon")
    with pytest.raises(DataError, match="c holds no images"):
        load_data(str(tmp_path))


def test_files_that_are_no_images_are_left_out(tmp_path: Path) -> None:
    layouts.class_folders(tmp_path, {"a": 10, "b": 10})
    for name in ("notes.txt", ".hidden.png", "Thumbs.db"):
        (tmp_path / "a" / name).write_text("x")
    data = load_data(str(tmp_path))
    assert len(data.train) + len(data.validation) + len(data.test) == 20


def test_deep_grey_images_are_scaled_and_not_cut_off() -> None:
    def encoded(array: np.ndarray, kind: str) -> bytes:
        file = io.BytesIO()
        Image.fromarray(array).save(file, kind)
        return file.getvalue()

    deep = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1024
    assert np.array_equal(pixels(encoded(deep, "png"), (1, 8, 8), "x")[0], deep >> 8)
    assert np.array_equal(pixels(encoded(deep, "png"), (3, 8, 8), "x")[2], deep >> 8)
    assert np.array_equal(pixels(encoded(deep.astype(np.int32), "tiff"), (1, 8, 8), "x")[0], deep >> 8)
    for wrong in (deep.astype(np.int32) * 100, deep.astype(np.float32)):
        with pytest.raises(DataError, match="x: expected pixels of 8 or 16 bits, got"):
            pixels(encoded(wrong, "tiff"), (1, 8, 8), "x")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK"])
def test_images_come_in_every_mode(mode: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number, array in enumerate(layouts.pictures(5, (8, 8, 3))):
            image = Image.fromarray(array).convert(mode)
            image.save(tmp_path / name / f"{number}.{'tiff' if mode == 'CMYK' else 'png'}")
    assert load_data(str(tmp_path)).shape == (1 if mode in ("1", "L", "LA") else 3, 8, 8)


@pytest.mark.parametrize(
    "options", [{"validation": 0.0}, {"validation": 1.0}, {"images": 0}, {"image_size": 0}, {"workers": -1}]
)
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        DataConfig("digits", **options)  # type: ignore[arg-type]


# --- batches and augmentation -----------------------------------------------------------------------------


def split_of(images: torch.Tensor) -> HeldSplit:
    return HeldSplit(images, torch.arange(len(images)), Normalisation((0.0,), (1.0,)))


def test_an_epoch_shows_every_image_once_and_drops_only_the_rest() -> None:
    split = split_of(torch.arange(50, dtype=torch.uint8).reshape(50, 1, 1, 1))
    batches = list(split.shuffled(8, seed=0, augment="none"))
    labels = torch.cat([labels for _, labels in batches])
    assert [len(images) for images, _ in batches] == [8] * 6
    assert len(labels.unique()) == 48
    for images, part in batches:
        assert torch.equal((images.flatten() * 255).round().long(), part)
    assert labels.tolist() != sorted(labels.tolist())
    assert len(list(split.shuffled(80, seed=0, augment="none"))) == 1, "a small set is one batch"


@settings(deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["none", "flip", "pad-crop", "pad-crop-flip"]))
def test_augmentation_moves_each_image_as_a_whole(seed: int, how: str) -> None:
    """Every augmented image is a window of the padded original, or that window mirrored."""
    images = torch.randint(1, 256, (3, 2, 6, 5), generator=torch.Generator().manual_seed(seed)).byte()
    result = augmented(images, how, torch.Generator().manual_seed(seed))  # type: ignore[arg-type]
    assert result.shape == images.shape and result.dtype == torch.uint8
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    shifts = range(9) if "crop" in how else [4]
    for before, after in zip(padded, result, strict=True):
        windows = [before[:, top : top + 6, left : left + 5] for top in shifts for left in shifts]
        if "flip" in how:
            windows += [window.flip(2) for window in windows]
        assert any(torch.equal(window, after) for window in windows)


def test_augmentation_differs_between_images_and_uses_every_offset() -> None:
    images = torch.randint(1, 256, (1, 1, 8, 8), generator=torch.Generator().manual_seed(0)).byte()
    result = augmented(images.expand(2000, -1, -1, -1), "pad-crop-flip", torch.Generator().manual_seed(1))
    assert len({image.numpy().tobytes() for image in result}) == 162


def test_a_held_split_cannot_cut_from_originals() -> None:
    with pytest.raises(DataError, match="'none', 'flip', 'pad-crop' or 'pad-crop-flip'"):
        next(split_of(torch.zeros(4, 1, 8, 8).byte()).shuffled(2, seed=0, augment="resized-crop-flip"))
