"""LeNet-5 for MNIST, and two networks that train in seconds on the embedded data sets."""

from __future__ import annotations

from torch import Tensor, nn


class LeNet5(nn.Module):
    """20 and 50 maps of 5×5 convolutions, 800 flattened features, 500 hidden units: 28×28 images."""

    def __init__(self, num_classes: int = 10, in_channels: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.pool = nn.MaxPool2d(2)
        self.flatten = nn.Flatten()
        self.fc1 = nn.Linear(50 * 4 * 4, 500)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(500, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores `[image, class]` of images `[image, channel, 28, 28]`."""
        x = self.pool(self.conv1(x))
        x = self.pool(self.conv2(x))
        x = self.relu(self.fc1(self.flatten(x)))
        scores: Tensor = self.fc2(x)
        return scores


def digits_net(num_classes: int = 10, in_channels: int = 1) -> nn.Sequential:
    """Two convolutions with batch-norm and one hidden layer, for 8×8 images."""
    return nn.Sequential(
        *_convolution(in_channels, 16),
        *_convolution(16, 32),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, num_classes),
    )


def shapes_net(num_classes: int = 10, in_channels: int = 3) -> nn.Sequential:
    """Four convolutions with batch-norm, for 32×32 images."""
    return nn.Sequential(
        *_convolution(in_channels, 16),
        nn.MaxPool2d(2),
        *_convolution(16, 32),
        nn.MaxPool2d(2),
        *_convolution(32, 48),
        nn.MaxPool2d(2),
        *_convolution(48, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, num_classes),
    )


def _convolution(in_channels: int, out_channels: int) -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )
