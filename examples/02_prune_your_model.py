"""Prune a network of your own to half of its multiply-accumulates, retrain it, save it, export it to ONNX.

python examples/02_prune_your_model.py
"""

from pathlib import Path

import torch
from torch import nn

import evoprune

FOLDER = Path("runs/examples/pruned")


class Residual(nn.Module):
    """A block as many people write it: nothing in it knows of pruning."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


def my_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), Residual(32), nn.MaxPool2d(2), Residual(32),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def train(network: nn.Module, images: torch.Tensor, labels: torch.Tensor, epochs: int) -> None:
    """A training loop like yours."""
    optimizer = torch.optim.Adam(network.parameters(), lr=0.005)
    network.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(labels)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(images[batch]), labels[batch]).backward()
            optimizer.step()
    network.eval()


def accuracy(network: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> str:
    with torch.no_grad():
        return f"{(network(images).argmax(1) == labels).float().mean():.1%}"


if __name__ == "__main__":
    torch.manual_seed(0)
    digits = evoprune.Task.from_spec("digits").data
    seen, unseen = next(digits.train.ordered(10_000)), next(digits.test.ordered(10_000))
    network = my_network()
    train(network, *seen, epochs=6)
    print(f"trained: {accuracy(network, *unseen)} of the test images")

    # Scored on training images, cut, and checked against the original network.
    pruned = evoprune.prune(network, "xi_star", seen, flops=0.5)
    print(pruned)
    print(f"right after the cut: {accuracy(pruned.network.eval(), *unseen)}")

    train(pruned.network, *seen, epochs=4)
    print(f"retrained: {accuracy(pruned.network, *unseen)}")

    # Safetensors and JSON, no pickle; the factory of the unpruned network is enough to read it back.
    pruned.save(FOLDER)
    again = evoprune.load_pruned(my_network, FOLDER).eval()
    assert torch.equal(again(unseen[0]), pruned.network(unseen[0]))

    try:
        pruned.export_onnx(FOLDER / "network.onnx")  # compared with onnxruntime
        print(f"saved in {FOLDER}, as ONNX too")
    except evoprune.EvopruneError as error:  # the extra is not there; the message says how to install it
        print(f"saved in {FOLDER}; no ONNX: {error}")
