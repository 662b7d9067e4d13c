"""VGG for CIFAR (with batch-norm) and for ImageNet (without, torchvision's parameter names)."""

from __future__ import annotations

from torch import Tensor, nn

# Widths of the 3×3 convolutions; "M" is a 2×2 max pooling.
VGG16 = (64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M")
VGG19 = (
    64,
    64,
    "M",
    128,
    128,
    "M",
    256,
    256,
    256,
    256,
    "M",
    512,
    512,
    512,
    512,
    "M",
    512,
    512,
    512,
    512,
    "M",
)


class VGG(nn.Module):
    """Convolutions with batch-norm for 32×32 images; `hidden` adds a fully connected layer of that width."""

    def __init__(
        self,
        widths: tuple[int | str, ...] = VGG16,
        num_classes: int = 10,
        in_channels: int = 3,
        *,
        hidden: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.features = _features(widths, in_channels, batch_norm=True)
        last = int(next(width for width in reversed(widths) if width != "M"))
        self.flatten = nn.Flatten()
        head: list[nn.Module] = []
        if hidden is not None:
            head = [nn.Linear(last, hidden), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True)]
            last = hidden
        self.classifier = nn.Sequential(*head, nn.Dropout(dropout), nn.Linear(last, num_classes))

    def forward(self, x: Tensor) -> Tensor:
        """Class scores `[image, class]` of images `[image, channel, 32, 32]`."""
        scores: Tensor = self.classifier(self.flatten(self.features(x)))
        return scores


class ImageNetVGG(nn.Module):
    """Convolutions with bias and the 4096-4096 head, for 224×224 images."""

    def __init__(self, num_classes: int = 1000, in_channels: int = 3, *, dropout: float = 0.5) -> None:
        super().__init__()
        self.features = _features(VGG16, in_channels, batch_norm=False)
        self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
        self.flatten = nn.Flatten()
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(4096, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Class scores `[image, class]` of images `[image, channel, H, W]`."""
        scores: Tensor = self.classifier(self.flatten(self.avgpool(self.features(x))))
        return scores


def vgg16(num_classes: int = 10, in_channels: int = 3, *, dropout: float = 0.0) -> VGG:
    """VGG-16 for 32×32 images with a 512-512-classes head, both widths prunable."""
    return VGG(VGG16, num_classes, in_channels, hidden=512, dropout=dropout)


def vgg19(num_classes: int = 100, in_channels: int = 3, *, dropout: float = 0.0) -> VGG:
    """VGG-19 for 32×32 images: the classes are read off the last 512 channels."""
    return VGG(VGG19, num_classes, in_channels, dropout=dropout)


def vgg16_imagenet(num_classes: int = 1000, in_channels: int = 3, *, dropout: float = 0.5) -> ImageNetVGG:
    """VGG-16 for ImageNet, with torchvision's parameter names."""
    return ImageNetVGG(num_classes, in_channels, dropout=dropout)


def _features(widths: tuple[int | str, ...], in_channels: int, *, batch_norm: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in widths:
        if isinstance(width, str):
            layers.append(nn.MaxPool2d(2))
            continue
        layers.append(nn.Conv2d(in_channels, width, 3, padding=1, bias=not batch_norm))
        layers += [nn.BatchNorm2d(width)] if batch_norm else []
        layers.append(nn.ReLU(inplace=True))
        in_channels = width
    return nn.Sequential(*layers)
