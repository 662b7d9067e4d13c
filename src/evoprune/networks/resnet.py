"""Residual networks: pre-activation and option A for CIFAR, ResNet-18 for ImageNet."""

from __future__ import annotations

from torch import Tensor, nn

from evoprune.networks.layers import ChannelSelect


class PreactBlock(nn.Module):
    """Batch-norm and ReLU before each convolution; two of 3×3, or a 1×1-3×3-1×1 bottleneck.

    Where the stream widens, the shortcut averages 2×2 pixels and pads zero channels, half on each side.
    The very first block reads the stem's activations as they are.
    """

    def __init__(
        self, in_channels: int, width: int, stride: int, *, bottleneck: bool, first: bool = False
    ) -> None:
        super().__init__()
        out_channels = 4 * width if bottleneck else width
        self.first = first
        if not first:
            self.bn1 = nn.BatchNorm2d(in_channels)
        self.relu = nn.ReLU()
        if bottleneck:
            self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(width)
            self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
            self.bn3 = nn.BatchNorm2d(width)
            self.conv3 = nn.Conv2d(width, out_channels, 1, bias=False)
        else:
            self.conv1 = nn.Conv2d(in_channels, width, 3, stride, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(width)
            self.conv2 = nn.Conv2d(width, out_channels, 3, 1, 1, bias=False)
        self.bottleneck = bottleneck
        added = out_channels - in_channels
        self.shortcut = nn.Sequential(
            *([nn.AvgPool2d(stride)] if stride > 1 else []),
            *([ChannelSelect.padding(added // 2, in_channels, added - added // 2)] if added else []),
        )

    def forward(self, x: Tensor) -> Tensor:
        """`[image, channel, H, W]` to `[image, channel, H / stride, W / stride]`."""
        out = x if self.first else self.relu(self.bn1(x))
        out = self.conv2(self.relu(self.bn2(self.conv1(out))))
        if self.bottleneck:
            out = self.conv3(self.relu(self.bn3(out)))
        total: Tensor = self.shortcut(x) + out
        return total


class PreactResNet(nn.Module):
    """A pre-activation residual network for 32×32 images, in three stages of `blocks` blocks."""

    def __init__(self, blocks: int, num_classes: int = 10, in_channels: int = 3, *, bottleneck: bool) -> None:
        super().__init__()
        width = 64 if bottleneck else 16
        self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        for stage, inner in enumerate((16, 32, 64)):
            layers = []
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                first = stage == 0 and block == 0
                layers.append(PreactBlock(width, inner, stride, bottleneck=bottleneck, first=first))
                width = 4 * inner if bottleneck else inner
            self.add_module(f"layer{stage + 1}", nn.Sequential(*layers))
        self.bn = nn.BatchNorm2d(width)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores `[image, class]` of images `[image, channel, 32, 32]`."""
        x = self.relu(self.bn1(self.conv1(x)))
        for stage in (1, 2, 3):
            x = self.get_submodule(f"layer{stage}")(x)
        scores: Tensor = self.fc(self.flatten(self.avgpool(self.relu(self.bn(x)))))
        return scores


def preact_resnet(
    depth: int, num_classes: int = 10, in_channels: int = 3, *, bottleneck: bool | None = None
) -> PreactResNet:
    """A pre-activation ResNet for CIFAR: depths 6n+2 are basic blocks, 9n+2 bottlenecks.

    Depths that are both (20, 38, 56, 110, 164 …) are told apart by `bottleneck`; unless it is given, 38
    and 164 are bottlenecks and the others basic.
    """
    if bottleneck is None:
        bottleneck = depth in (38, 164) or (depth - 2) % 6 != 0
    per_block = 9 if bottleneck else 6
    if depth < per_block + 2 or (depth - 2) % per_block:
        raise ValueError(
            f"the depth of a ResNet of {'bottlenecks' if bottleneck else 'basic blocks'} is "
            f"{per_block}n+2 with n ≥ 1, got {depth}"
        )
    return PreactResNet((depth - 2) // per_block, num_classes, in_channels, bottleneck=bottleneck)


class OptionABlock(nn.Module):
    """Two 3×3 convolutions; the shortcut takes every second pixel and pads zero channels (option A)."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU()
        self.stride = stride
        added = out_channels - in_channels
        self.shortcut = (
            ChannelSelect.padding(added // 2, in_channels, added - added // 2) if added else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        """`[image, channel, H, W]` to `[image, channel, H / stride, W / stride]`."""
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        shortcut = x[:, :, :: self.stride, :: self.stride] if self.stride > 1 else x
        total: Tensor = self.relu(out + self.shortcut(shortcut))
        return total


class ResNet(nn.Module):
    """The CIFAR ResNet of He et al. with option A shortcuts, in three stages of `blocks` blocks."""

    def __init__(self, blocks: int, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU()
        width = 16
        for stage, out_channels in enumerate((16, 32, 64)):
            layers = []
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(OptionABlock(width, out_channels, stride))
                width = out_channels
            self.add_module(f"layer{stage + 1}", nn.Sequential(*layers))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.linear = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores `[image, class]` of images `[image, channel, 32, 32]`."""
        x = self.relu(self.bn1(self.conv1(x)))
        for stage in (1, 2, 3):
            x = self.get_submodule(f"layer{stage}")(x)
        scores: Tensor = self.linear(self.flatten(self.avgpool(x)))
        return scores


def resnet20(num_classes: int = 10, in_channels: int = 3) -> ResNet:
    """ResNet-20 with option A shortcuts."""
    return ResNet(3, num_classes, in_channels)


def resnet56(num_classes: int = 10, in_channels: int = 3) -> ResNet:
    """ResNet-56 with option A shortcuts (the paper prunes the pre-activation one)."""
    return ResNet(9, num_classes, in_channels)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions; where the shape changes the shortcut is a 1×1 convolution (option B)."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.downsample: nn.Module | None = None
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """`[image, channel, H, W]` to `[image, channel, H / stride, W / stride]`."""
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        total: Tensor = self.relu(out + (x if self.downsample is None else self.downsample(x)))
        return total


class ImageNetResNet(nn.Module):
    """A ResNet of basic blocks for ImageNet, with torchvision's parameter names."""

    def __init__(self, blocks: tuple[int, ...], num_classes: int = 1000, in_channels: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        width = 64
        for stage, count in enumerate(blocks):
            out_channels = 64 * 2**stage
            layers = []
            for block in range(count):
                layers.append(BasicBlock(width, out_channels, 2 if stage > 0 and block == 0 else 1))
                width = out_channels
            self.add_module(f"layer{stage + 1}", nn.Sequential(*layers))
        self.stages = len(blocks)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores `[image, class]` of images `[image, channel, H, W]`."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in range(1, self.stages + 1):
            x = self.get_submodule(f"layer{stage}")(x)
        scores: Tensor = self.fc(self.flatten(self.avgpool(x)))
        return scores


def resnet18(num_classes: int = 1000, in_channels: int = 3) -> ImageNetResNet:
    """ResNet-18 for ImageNet, with torchvision's parameter names."""
    return ImageNetResNet((2, 2, 2, 2), num_classes, in_channels)
