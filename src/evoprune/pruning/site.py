"""A site as a value: where channels are made, carried and read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class Reader:
    """A layer that reads a site's channels.

    `module` is its name and `call` which of its calls in one forward pass; `axis` is the channel axis of
    its input. `positions` are the site's places along it, `[channel · pixel]`, the channels in the site's
    order, each with its pixels where a flatten came before. `offset` is the first place, `width` how many
    there are.
    """

    module: str
    call: int
    offset: int
    width: int
    axis: int
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """A module that makes or carries a site's channels, and at which rows, `[channel · copies]`."""

    module: str
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Site:
    """A place where channels can be removed.

    `root` is the layer that produces them first, `producers` are all that write to them (several at
    residual adds), `writer` the one that wrote last before the first reader: W and W_I are its filters.
    `batch_norm` is the last batch-norm before the first reader and `map_size` the (H, W) of what that
    reads. From each of `blocks` equal runs of channels (grouped convolutions) equally many must go.
    `selects` is the layer that chooses these channels for itself, where the site is such a selection; then
    `parents` names, per channel, the (site, channel) it chooses from, if that can be removed too.
    """

    name: str
    channels: int
    root: str
    producers: tuple[Rows, ...]
    carried: tuple[Rows, ...]
    passed: tuple[str, ...]
    readers: tuple[Reader, ...]
    writer: Rows
    norm: Rows | None
    map_size: tuple[int, int]
    blocks: int = 1
    selects: str | None = None
    parents: tuple[tuple[str, int] | None, ...] = ()

    @cached_property
    def carriers(self) -> tuple[str, ...]:
        """The names of what hands the channels on unchanged in number: norms, activations, pooling …"""
        return tuple(dict.fromkeys([*(rows.module for rows in self.carried), *self.passed]))

    @property
    def batch_norm(self) -> str | None:
        """The name of the last batch-norm before the first reader."""
        return self.norm.module if self.norm else None

    def __str__(self) -> str:
        readers = ", ".join(dict.fromkeys(reader.module for reader in self.readers))
        return f"{self.name}: {self.channels} channels of {self.root}, read by {readers}"
