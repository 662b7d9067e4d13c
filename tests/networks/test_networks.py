"""The networks: shapes, names, and the published weights they load."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evoprune import networks
from evoprune.networks import ChannelSelect
from evoprune.networks.layers import put_select, selection_of

SMALL: list[tuple[Any, tuple[int, ...]]] = [
    (networks.LeNet5, (1, 28, 28)),
    (networks.vgg16, (3, 32, 32)),
    (networks.vgg19, (3, 32, 32)),
    (networks.resnet20, (3, 32, 32)),
    (networks.resnet56, (3, 32, 32)),
    (networks.digits_net, (1, 8, 8)),
    (networks.shapes_net, (3, 32, 32)),
    (networks.resnet18, (3, 224, 224)),
    (networks.vgg16_imagenet, (3, 224, 224)),
    (networks.mobilenet_v2, (3, 224, 224)),
    (lambda **options: networks.preact_resnet(20, bottleneck=False, **options), (3, 32, 32)),
    (lambda **options: networks.preact_resnet(164, **options), (3, 32, 32)),
]


@pytest.mark.parametrize(("factory", "shape"), SMALL)
def test_classes_and_input_channels_are_free(factory: Any, shape: tuple[int, ...]) -> None:
    with torch.device("meta"):
        channels = shape[0] + 1
        net = factory(num_classes=7, in_channels=channels)
        assert net(torch.empty(2, channels, *shape[1:])).shape == (2, 7)
        assert factory()(torch.empty(2, *shape)).ndim == 2


@pytest.mark.parametrize("depth", [20, 32, 44, 56, 110])
def test_basic_preactivation_networks(depth: int) -> None:
    with torch.device("meta"):
        net = networks.preact_resnet(depth, bottleneck=False)
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) + 1 == depth
    assert all(conv.bias is None for conv in convolutions)


@pytest.mark.parametrize("depth", [29, 38, 164])
def test_bottlenecks(depth: int) -> None:
    with torch.device("meta"):
        net = networks.preact_resnet(depth, bottleneck=True)
    assert sum(isinstance(m, nn.Conv2d) for m in net.modules()) + 1 == depth
    assert net.conv1.out_channels == 64 and net.fc.in_features == 256
    assert net.layer2[0].conv2.stride == (2, 2) and net.layer2[0].conv1.stride == (1, 1)
    assert not hasattr(net.layer1[0], "bn1") and net.layer1[1].bn1.num_features == 64


def test_depths_that_are_both_are_told_apart() -> None:
    with torch.device("meta"):
        assert networks.preact_resnet(56).layer1[0].bottleneck is False
        assert networks.preact_resnet(110).layer1[0].bottleneck is False
        assert networks.preact_resnet(38).layer1[0].bottleneck is True
        assert networks.preact_resnet(164).layer1[0].bottleneck is True
        assert networks.preact_resnet(47).layer1[0].bottleneck is True
    with pytest.raises(ValueError, match=r"bottlenecks is 9n\+2 with n ≥ 1, got 57"):
        networks.preact_resnet(57)
    with pytest.raises(ValueError, match=r"basic blocks is 6n\+2 with n ≥ 1, got 2"):
        networks.preact_resnet(2, bottleneck=False)


def test_preactivation_shortcuts_average_and_pad() -> None:
    block = networks.preact_resnet(20, bottleneck=False).layer2[0]
    x = torch.randn(1, 16, 8, 8)
    shortcut = block.shortcut(x)
    assert shortcut.shape == (1, 32, 4, 4)
    torch.testing.assert_close(shortcut[:, 8:24], nn.functional.avg_pool2d(x, 2))
    assert not shortcut[:, :8].any() and not shortcut[:, 24:].any()


NAMES = {
    networks.resnet18: """conv1.weight bn1.running_var layer1.0.conv1.weight layer2.0.downsample.0.weight
        layer2.0.downsample.1.bias layer4.1.bn2.weight fc.bias""",
    networks.vgg16_imagenet: """features.0.weight features.28.bias classifier.0.weight classifier.3.bias
        classifier.6.weight""",
    networks.mobilenet_v2: """features.0.0.weight features.1.conv.0.0.weight features.1.conv.1.weight
        features.1.conv.2.weight features.17.conv.3.bias features.18.1.weight classifier.1.bias""",
}


@pytest.mark.parametrize(("factory", "names"), NAMES.items())
def test_imagenet_networks_have_torchvisions_names(factory: Any, names: str) -> None:
    with torch.device("meta"):
        state = factory().state_dict()
    assert set(names.split()) <= set(state)
    assert (
        len(state)
        == {networks.resnet18: 122, networks.vgg16_imagenet: 32, networks.mobilenet_v2: 314}[factory]
    )


def test_channel_select() -> None:
    x = torch.randn(2, 4, 3, 3)
    select = ChannelSelect([2, -1, 0], 4)
    out = select(x)
    assert torch.equal(out[:, 0], x[:, 2]) and torch.equal(out[:, 2], x[:, 0]) and not out[:, 1].any()
    assert (select.in_channels, select.out_channels, str(select)) == (4, 3, "ChannelSelect(4, 3)")
    assert not select.state_dict()
    assert torch.equal(ChannelSelect([1, 0], 2)(torch.tensor([[3.0, 5.0]])), torch.tensor([[5.0, 3.0]]))
    with pytest.raises(ValueError, match=r"must lie in \[-1, 4\), got \[4\]"):
        ChannelSelect([4], 4)


def test_a_selection_in_front_keeps_the_layers_names() -> None:
    conv = nn.Conv2d(2, 3, 1)
    names = list(conv.state_dict())
    put_select(conv, [3, 1], 5)
    x = torch.randn(1, 5, 2, 2)
    torch.testing.assert_close(conv(x), nn.functional.conv2d(x[:, [3, 1]], conv.weight, conv.bias))
    assert isinstance(conv, nn.Conv2d) and list(conv.state_dict()) == names
    assert selection_of(conv).chosen == (3, 1) and selection_of(nn.Conv2d(2, 3, 1)) is None
    put_select(conv, [0, 1], 2)
    assert selection_of(conv).in_channels == 2
    with pytest.raises(TypeError, match="got ReLU"):
        put_select(nn.ReLU(), [0], 1)


@pytest.mark.parametrize("factory", [networks.digits_net, networks.shapes_net])
def test_small_networks_are_small(factory: Any) -> None:
    assert sum(parameter.numel() for parameter in factory().parameters()) < 60_000


# --- the real weights -------------------------------------------------------------------------------------


def images_of(path: Path, label: str = "label") -> tuple[list[Any], Tensor]:
    parquet = pytest.importorskip("pyarrow.parquet")
    image = pytest.importorskip("PIL.Image")
    table = parquet.read_table(path)
    column = next(name for name in table.column_names if name in ("image", "img"))
    pictures = [image.open(io.BytesIO(row["bytes"])).convert("RGB") for row in table[column].to_pylist()]
    return pictures, torch.tensor(table[label].to_pylist())


def pixels(pictures: list[Any]) -> Tensor:
    """uint8 `[image, channel, y, x]`."""
    import numpy as np

    return torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures])).permute(0, 3, 1, 2)


@torch.inference_mode()
def accuracy(net: nn.Module, images: Tensor, labels: Tensor, batch: int = 100) -> float:
    net.eval()
    right = [net(x).argmax(1).eq(y) for x, y in zip(images.split(batch), labels.split(batch), strict=True)]
    return 100 * torch.cat(right).float().mean().item()


@pytest.mark.real
@pytest.mark.heavy
@pytest.mark.parametrize(
    ("file", "factory", "expected"),
    [("resnet20-12fca82f.th", networks.resnet20, 91.73), ("resnet56-4bfd9763.th", networks.resnet56, 93.39)],
)
def test_option_a_checkpoints_score_as_published(
    real_data: Path, file: str, factory: Any, expected: float
) -> None:
    path = real_data / "checkpoints" / file
    if not path.exists():
        pytest.skip(f"{path} is not there")
    saved = torch.load(path, weights_only=True, map_location="cpu")["state_dict"]
    net = factory()
    net.load_state_dict({name.removeprefix("module."): tensor for name, tensor in saved.items()})
    pictures, labels = images_of(real_data / "cifar10" / "test.parquet")
    mean = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
    std = torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    images = (pixels(pictures).float() / 255 - mean) / std
    assert accuracy(net, images, labels) == pytest.approx(expected, abs=0.005)


@pytest.mark.real
@pytest.mark.heavy
def test_mobilenet_checkpoint_scores_as_published(real_data: Path) -> None:
    path = real_data / "checkpoints" / "mobilenet_v2_imagenet_fp16.pth"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    net = networks.mobilenet_v2()
    net.load_state_dict(torch.load(path, weights_only=True, map_location="cpu"))
    net.float()
    pictures, labels = images_of(real_data / "imagenette" / "test.parquet", "imagenet_label")
    images = pixels(pictures).float() / 127.5 - 1
    assert accuracy(net, images, labels, batch=25) == pytest.approx(64.6, abs=0.05)
