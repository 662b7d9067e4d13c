"""Layers that choose channels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

ZERO = -1


class ChannelSelect(nn.Module):
    """Output channel j is input channel `index[j]`, or zeros where `index[j]` is -1.

    In front of a convolution it chooses the channels that the convolution reads; as a shortcut it pads
    with zero channels. To a dependency graph it is an ordinary layer: its input channels and its output
    channels can be removed independently of each other.
    """

    index: Tensor

    def __init__(self, index: Sequence[int], in_channels: int) -> None:
        super().__init__()
        # Rebuilt with the network, like any other shape; checkpoints need not know about it.
        self.register_buffer("index", torch.empty(0, dtype=torch.long), persistent=False)
        self.choose(index, in_channels)

    def choose(self, index: Sequence[int], in_channels: int) -> None:
        """Replace what is chosen."""
        chosen = tuple(int(i) for i in index)
        if any(not ZERO <= i < in_channels for i in chosen):
            raise ValueError(f"the index must lie in [-1, {in_channels}), got {list(chosen)}")
        # Known without looking into a tensor, so that it is known on the meta device as well.
        self.chosen, self.in_channels = chosen, in_channels
        # One more channel, of zeros, at the end is what -1 stands for.
        places = [in_channels if i == ZERO else i for i in chosen]
        self.index = torch.tensor(places, dtype=torch.long, device=self.index.device)

    @classmethod
    def padding(cls, before: int, channels: int, after: int) -> ChannelSelect:
        """All channels, with that many zero channels before and after."""
        return cls([ZERO] * before + list(range(channels)) + [ZERO] * after, channels)

    @property
    def out_channels(self) -> int:
        return len(self.chosen)

    def forward(self, x: Tensor) -> Tensor:
        """Choose along axis 1 of `[image, channel, ...]`."""
        if ZERO in self.chosen:
            x = functional.pad(x, (0, 0) * (x.ndim - 2) + (0, 1))
        return x.index_select(1, self.index)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}"


class _Selecting(nn.Module):
    """A layer that chooses its input channels first; its own parameters keep their names."""

    select: ChannelSelect

    def forward(self, x: Tensor) -> Tensor:
        chosen: Tensor = super().forward(self.select(x))
        return chosen


class SelectConv1d(_Selecting, nn.Conv1d):
    """A 1-d convolution behind a `ChannelSelect`."""


class SelectConv2d(_Selecting, nn.Conv2d):
    """A 2-d convolution behind a `ChannelSelect`."""


class SelectConv3d(_Selecting, nn.Conv3d):
    """A 3-d convolution behind a `ChannelSelect`."""


class SelectLinear(_Selecting, nn.Linear):
    """A fully connected layer behind a `ChannelSelect`."""


SELECTING: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: SelectConv1d,
    nn.Conv2d: SelectConv2d,
    nn.Conv3d: SelectConv3d,
    nn.Linear: SelectLinear,
}


def put_select(layer: nn.Module, index: Sequence[int], in_channels: int) -> None:
    """Make the layer, in place, choose these of `in_channels` channels before it works on them."""
    if isinstance(layer, _Selecting):
        layer.select.choose(index, in_channels)
        return
    kind = SELECTING.get(type(layer))
    if kind is None:
        known = ", ".join(cls.__name__ for cls in SELECTING)
        raise TypeError(f"a channel selection goes in front of {known}, got {type(layer).__name__}")
    # The class is changed and not the object, so that whoever refers to the layer still does.
    layer.__class__ = kind
    select = ChannelSelect(index, in_channels)
    layer.add_module("select", select.to(next(layer.parameters()).device))


def selection_of(layer: nn.Module) -> ChannelSelect | None:
    """The `ChannelSelect` in front of a layer, where there is one."""
    return layer.select if isinstance(layer, _Selecting) else None
