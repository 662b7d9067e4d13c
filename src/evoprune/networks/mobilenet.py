"""MobileNetV2 with torchvision's parameter names."""

from __future__ import annotations

from torch import Tensor, nn

# expansion, output channels, blocks, stride of the first block
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """Expand by a 1×1, filter each channel by a 3×3, project by a 1×1; a residual where shapes allow."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = in_channels * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers.append(_convolution(in_channels, inner, 1))
        layers += [
            _convolution(inner, inner, 3, stride, groups=inner),
            nn.Conv2d(inner, out_channels, 1, bias=False),
            nn.BatchNorm2d(out_channels),
        ]
        self.conv = nn.Sequential(*layers)
        self.residual = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        """`[image, channel, H, W]` to `[image, channel, H / stride, W / stride]`."""
        out: Tensor = self.conv(x)
        return x + out if self.residual else out


class MobileNetV2(nn.Module):
    """MobileNetV2; `width` multiplies the number of channels, rounded to multiples of 8."""

    def __init__(
        self, num_classes: int = 1000, in_channels: int = 3, *, width: float = 1.0, dropout: float = 0.2
    ) -> None:
        super().__init__()
        channels = _rounded(32 * width)
        last = _rounded(1280 * max(1.0, width))
        features: list[nn.Module] = [_convolution(in_channels, channels, 3, 2)]
        for expansion, out_channels, blocks, stride in STAGES:
            wide = _rounded(out_channels * width)
            for block in range(blocks):
                features.append(InvertedResidual(channels, wide, stride if block == 0 else 1, expansion))
                channels = wide
        features.append(_convolution(channels, last, 1))
        self.features = nn.Sequential(*features)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(last, num_classes))

    def forward(self, x: Tensor) -> Tensor:
        """Class scores `[image, class]` of images `[image, channel, H, W]`."""
        scores: Tensor = self.classifier(self.flatten(self.avgpool(self.features(x))))
        return scores


def mobilenet_v2(
    num_classes: int = 1000, in_channels: int = 3, *, width: float = 1.0, dropout: float = 0.2
) -> MobileNetV2:
    """MobileNetV2 for ImageNet, with torchvision's parameter names."""
    return MobileNetV2(num_classes, in_channels, width=width, dropout=dropout)


def _convolution(
    in_channels: int, out_channels: int, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU6(inplace=True),
    )


def _rounded(channels: float) -> int:
    """The nearest multiple of 8, but not more than a tenth below."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest
