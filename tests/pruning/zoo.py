"""Small networks of every kind that is to be cut right: name → (factory, input shape)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from evoprune import networks


def vgg() -> nn.Module:
    return networks.VGG((6, 8, "M", 10, "M", 12, "M"), 5, hidden=7, dropout=0.3)


class PaddedBlock(nn.Module):
    """Option A as people write it: the padding is a number in the code."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        stride = 1 if in_channels == out_channels else 2
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.added = out_channels - in_channels

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        if self.added:
            half = self.added // 2
            x = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, half, self.added - half), "constant", 0)
        return functional.relu(out + x)


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(6)
        self.layers = nn.Sequential(PaddedBlock(6, 6), PaddedBlock(6, 12), PaddedBlock(12, 12))
        self.linear = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(functional.relu(self.bn1(self.conv1(x))))
        x = functional.avg_pool2d(x, x.shape[3])
        return self.linear(x.view(x.size(0), -1))


class Concatenated(nn.Module):
    """Option A by concatenation: the narrower stream twice (once times zero), and a loop over one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.conv1, self.conv2 = nn.Conv2d(6, 12, 3, 2, 1), nn.Conv2d(12, 12, 3, padding=1)
        self.again = nn.Conv2d(12, 12, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(12) for _ in range(2))
        self.fc = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        y = self.conv2(torch.relu(self.conv1(x)))
        x = functional.avg_pool2d(x, 1, 2)
        x = torch.relu(y + torch.cat((x, x.mul(0)), 1))
        for norm in self.norms:
            x = x + torch.relu(norm(self.again(x)))
        return self.fc(x.mean((2, 3)))


class Bottleneck(nn.Module):
    """A post-activation bottleneck with a convolution as its shortcut, as in ResNet-50."""

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(in_channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.Sequential()
        if in_channels != 4 * width:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += self.downsample(x)
        return self.relu(out)


def bottlenecks_b() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        Bottleneck(6, 3, 1),
        Bottleneck(12, 3, 1),
        Bottleneck(12, 5, 2),
        Bottleneck(20, 5, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(20, 5),
    )


class Dense(nn.Module):
    """Each layer reads the concatenation of all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(6 + 4 * i) for i in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(6 + 4 * i, 4, 3, padding=1, bias=False) for i in range(3))
        self.transition = nn.Sequential(nn.BatchNorm2d(18), nn.ReLU(), nn.Conv2d(18, 8, 1), nn.AvgPool2d(2))
        self.last = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8 * 2 * 2, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = torch.cat([x, conv(torch.relu(norm(x)))], 1)
        x = functional.relu(self.last(self.transition(x)))
        return self.fc(torch.flatten(functional.adaptive_avg_pool2d(x, 2), 1))


class Grouped(nn.Module):
    """A ResNeXt block: a grouped convolution within, and a grouped one that changes the width."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.reduce = nn.Conv2d(8, 12, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(12)
        self.grouped = nn.Conv2d(12, 12, 3, padding=1, groups=3, bias=False)
        self.bn2 = nn.BatchNorm2d(12)
        self.expand = nn.Conv2d(12, 8, 1)
        self.wider = nn.Conv2d(8, 16, 3, 2, 1, groups=2)
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        y = torch.relu(self.bn1(self.reduce(x)))
        y = torch.relu(self.bn2(self.grouped(y)))
        x = torch.relu(x + self.expand(y))
        return self.fc(torch.relu(self.wider(x)).mean((2, 3)))


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.squeeze = nn.Linear(8, 4)
        self.excite = nn.Linear(4, 8)
        self.conv2 = nn.Conv2d(8, 6, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.down = nn.Conv2d(6, 3, 1)
        self.up = nn.Conv2d(3, 6, 1)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.silu(self.bn1(self.conv1(x)))
        gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(x.mean((2, 3))))))
        x = x * gate.view(gate.size(0), -1, 1, 1)
        x = functional.hardswish(self.conv2(x))
        x = functional.hardsigmoid(self.up(torch.relu(self.down(self.pool(x))))) * x
        return self.fc(self.pool(x).flatten(1))


class Inception(nn.Module):
    """Two branches and a pooled one, concatenated; one is normalised before, one after."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.left = nn.Conv2d(6, 5, 1)
        self.right = nn.Sequential(nn.Conv2d(6, 4, 1), nn.PReLU(4), nn.Conv2d(4, 7, 3, padding=1))
        self.right_norm = nn.BatchNorm2d(7)
        self.norm = nn.BatchNorm2d(5 + 7 + 6)
        self.head = nn.Conv2d(18, 8, 3, 2)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        pooled = functional.max_pool2d(x, 3, 1, 1)
        x = torch.cat((self.left(x), self.right_norm(self.right(x)), pooled), dim=1)
        x = torch.relu(self.head(torch.relu(self.norm(x))))
        return self.fc(torch.amax(x, dim=(2, 3)))


class UNet(nn.Module):
    """Down, up by a transposed convolution, and the skip concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.down = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(6, 8, 3, padding=1), nn.LeakyReLU(0.1))
        self.up = nn.ConvTranspose2d(8, 5, 2, stride=2)
        self.leave = nn.Sequential(
            nn.Conv2d(11, 6, 3, padding=1), nn.InstanceNorm2d(6, affine=True), nn.ReLU()
        )
        self.smooth = nn.ConvTranspose2d(6, 6, 3, padding=1, groups=6)
        self.pixels = nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        y = functional.relu(self.up(self.down(x)))
        y = self.smooth(self.leave(torch.cat([x, y], dim=1)))
        return self.pixels(functional.interpolate(y, scale_factor=2, mode="bilinear"))


class Shared(nn.Module):
    """One convolution called twice, one module under two names, and two layers that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.again = nn.Conv2d(6, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.alias = self.norm
        self.one = nn.Conv2d(6, 8, 1)
        self.two = nn.Conv2d(6, 8, 1)
        self.two.weight = self.one.weight
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(self.norm(self.again(x)))
        x = torch.relu(self.alias(self.again(x)))
        return self.fc(torch.cat([self.one(x), torch.tanh(self.two(x))], 1).mean((-2, -1)))


def frozen() -> nn.Module:
    net = networks.shapes_net()
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    return net


class ChannelsLast(nn.Module):
    """Linear layers over the last axis, as in ConvNeXt, and a depthwise layer that makes two of each."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.twice = nn.Conv2d(6, 12, 3, padding=1, groups=6)
        self.wide = nn.Linear(12, 10)
        self.narrow = nn.Linear(10, 4)
        self.fc = nn.Linear(4 * 64, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(torch.relu(self.stem(x))).permute(0, 2, 3, 1)
        x = functional.gelu(self.wide(functional.gelu(x)))
        return self.fc(torch.relu(self.narrow(x)).flatten(1))


class Signal(nn.Module):
    """One axis only, with the linear layer's output shaped into maps again."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(2, 6, 3, padding=1)
        self.norm = nn.BatchNorm1d(6)
        self.hidden = nn.Linear(6 * 8, 7)
        self.fc = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool1d(torch.relu(self.norm(self.enter(x))), 2)
        return self.fc(torch.relu(self.hidden(x.reshape(x.shape[0], -1))))


class Tokens(nn.Module):
    """Images come channels last, a layer mixes pixels, branches are stacked, one weight goes both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 6, 2, 2)
        self.pixels = nn.Linear(16, 16)
        self.down, self.up = nn.Conv2d(6, 9, 1), nn.ConvTranspose2d(9, 6, 1)
        self.up.weight = self.down.weight
        self.gate = nn.Linear(6, 6)
        self.narrow = nn.Linear(8, 7)
        self.fc = nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.embed(x.permute(0, 3, 1, 2)))
        y = torch.relu(self.pixels(x.flatten(2))).view_as(x)
        x = torch.stack([x, y, self.up(torch.relu(self.down(x)))]).sum(0)
        x[:, :, 0] = 0.5
        x = x * torch.sigmoid(self.gate(x.mean((2, 3))))[:, :, None, None].repeat(1, 1, *x.shape[2:])
        x = torch.cat([x, x.new_zeros(x.shape[0], 2, *x.shape[2:])], 1)
        return self.fc(torch.relu(self.narrow(x.permute(0, 2, 3, 1))).mean((1, 2)))


IMAGES = (2, 3, 8, 8)
ZOO: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "vgg": (vgg, IMAGES),
    "lenet": (networks.LeNet5, (1, 1, 28, 28)),
    "option a": (lambda: networks.ResNet(1, 5), IMAGES),
    "option a, padded by hand": (Padded, IMAGES),
    "option a, concatenated": (Concatenated, IMAGES),
    "option b": (lambda: networks.ImageNetResNet((1, 2), 5), (1, 3, 24, 24)),
    "pre-activation": (lambda: networks.PreactResNet(1, 5, bottleneck=False), IMAGES),
    "bottlenecks": (lambda: networks.PreactResNet(1, 5, bottleneck=True), IMAGES),
    "bottlenecks, option b": (bottlenecks_b, IMAGES),
    "mobilenet": (lambda: networks.MobileNetV2(5, width=0.1), (1, 3, 32, 32)),
    "densenet": (Dense, IMAGES),
    "grouped": (Grouped, IMAGES),
    "squeeze-and-excite": (SqueezeExcite, IMAGES),
    "inception": (Inception, IMAGES),
    "u-net": (UNet, IMAGES),
    "frozen": (frozen, IMAGES),
    "shared": (Shared, IMAGES),
    "channels last": (ChannelsLast, IMAGES),
    "signal": (Signal, (2, 2, 16)),
    "tokens": (Tokens, (2, 8, 8, 3)),
}
