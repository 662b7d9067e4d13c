"""The sites of a network: where channels can be removed, and what `F`, `W`, `W_I` and `B` are there.

A site is a set of channels that are produced together (by its root), carried along (batch-norm,
activation, pooling, depthwise convolutions) and read, each at known positions of its readers' input.
Channels that meet in a residual add are one site; the parts of a concatenation are several.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evoprune.errors import SiteError
from evoprune.networks.layers import SELECTING, selection_of
from evoprune.pruning.channels import FOREIGN, Ids
from evoprune.pruning.follow import Layer, Read, Trace, follow


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


def sites(
    model: nn.Module,
    example_inputs: Any,
    *,
    selection: bool = False,
    ignore: Collection[str] = (),
    flatten_features: Collection[str] = (),
) -> tuple[Site, ...]:
    """List the sites of a network, in forward order.

    `example_inputs` is a tensor, a tuple of positional or a dict of keyword inputs. With `selection`,
    residual streams keep their width and the first convolution of each block chooses what it reads:
    those choices are sites of their own, named "LAYER.in". `flatten_features` names fully connected layers
    behind a flatten that choose among the flattened features likewise. Sites named in `ignore` are left out.
    """
    return find_sites(
        model, example_inputs, selection=selection, ignore=ignore, flatten_features=flatten_features
    ).sites


@dataclass(frozen=True)
class Structure:
    """A network's sites with the trace they were found in; `classes` are `[channel]` for each site."""

    trace: Trace
    sites: tuple[Site, ...]
    classes: Mapping[str, Ids]

    @property
    def names(self) -> list[str]:
        return [site.name for site in self.sites]


def find_sites(
    model: nn.Module,
    example_inputs: Any,
    *,
    selection: bool = False,
    ignore: Collection[str] = (),
    flatten_features: Collection[str] = (),
    lenient: bool = False,
) -> Structure:
    """The sites, and what surgery needs to know beside them; `lenient` leaves out what cannot be cut."""
    trace = follow(model, example_inputs)
    chosen = set(_stream_readers(trace, model) if selection else ())
    for name in flatten_features:
        layer = trace.layers.get(name)
        if layer is None or layer.kind != "linear" or not _behind_flatten(trace, name):
            known = [
                other.name
                for other in trace.layers.values()
                if other.kind == "linear" and _behind_flatten(trace, other.name)
            ]
            raise SiteError(
                f"flatten_features names fully connected layers behind a flatten, got {name!r}; "
                f"this network has {', '.join(known) or 'none'}"
            )
        chosen.add(name)
    chosen = {name for name in chosen if trace.layers[name].stream_ids is None}
    if chosen:
        trace = follow(model, example_inputs, selected=chosen)
    if selection:
        trace.kept |= trace.summed  # the residual streams keep their width
    finder = _Finder(trace)
    found, refused = finder.sites()
    known_names = [site.name for site in found] + list(refused)
    for name in ignore:
        if name not in known_names:
            raise SiteError(f"ignore names an unknown site {name!r}{hint(name, known_names)}")
    reasons = [f"{name!r}: {what}" for name, what in refused.items() if name not in ignore]
    if reasons and not lenient:
        names = [name for name in refused if name not in ignore]
        raise SiteError(
            "the channels of these sites are mixed and cannot be removed one by one; "
            f"to leave them whole pass ignore={names!r}\n  " + "\n  ".join(reasons)
        )
    left = tuple(site for site in found if site.name not in ignore)
    return Structure(trace, left, {site.name: finder.classes(site.name) for site in left})


def hint(name: str, known: Sequence[str]) -> str:
    """The end of a message about an unknown name: the closest known one, and all of them."""
    close = difflib.get_close_matches(name, known, n=1)
    return (
        f" (did you mean {close[0]!r}?)" if close else ""
    ) + f"; the sites are {', '.join(known) or 'none'}"


def first_read(site: Site) -> Reader:
    """The first reader in forward order: F is what it reads."""
    return site.readers[0]


def maps_of(site: Site, reader_input: Tensor) -> Tensor:
    """The site's channels in the input of its first reader: `[image, channel, H, W]`.

    Behind a flatten they get their height and width back; fully connected, both are 1.
    """
    reader = first_read(site)
    positions = torch.as_tensor(reader.positions, device=reader_input.device)
    taken = reader_input.movedim(reader.axis, 1)
    if not _is_whole(reader, taken.shape[1]):
        taken = taken.index_select(1, positions)
    return taken.reshape(taken.shape[0], site.channels, *site.map_size)


def _is_whole(reader: Reader, count: int) -> bool:
    return reader.width == count and reader.positions == tuple(range(count))


def filters_of(model: nn.Module, site: Site) -> Tensor:
    """The filters of the site's channels, `[channel, c_in, h, w]`; fully connected, h and w are 1."""
    layer = layer_filters_of(model, site)
    return layer.index_select(0, torch.as_tensor(site.writer.rows, device=layer.device))


def layer_filters_of(model: nn.Module, site: Site) -> Tensor:
    """All filters of the layer that the site's channels come from, `[filter, c_in, h, w]`."""
    layer = model.get_submodule(site.writer.module)
    weight = layer.get_parameter("weight").detach()
    if getattr(layer, "transposed", False):
        # Stored [c_in, c_out / groups, h, w]; a group's outputs read only the group's inputs.
        inputs = weight.shape[0] // int(layer.groups)  # type: ignore[arg-type]
        weight = weight.reshape(-1, inputs, *weight.shape[1:]).transpose(1, 2).flatten(0, 1)
    sizes = tuple(weight.shape[2:])
    h, w = (prod(sizes[:-1]), sizes[-1]) if sizes else (1, 1)
    return weight.reshape(weight.shape[0], weight.shape[1], h, w)


def batch_norm_of(model: nn.Module, site: Site) -> Tensor:
    """The site's batch-norm, `[channel, (scale, offset, running mean, running variance)]`.

    The rows are (1, 0, 0, 1) where the site has none.
    """
    like = model.get_submodule(site.writer.module).get_parameter("weight")
    neutral = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=like.dtype, device=like.device)
    if site.norm is None:
        return neutral.expand(site.channels, 4).clone()
    norm = model.get_submodule(site.norm.module)
    rows = torch.as_tensor(site.norm.rows, device=like.device)
    columns = []
    for at, name in enumerate(("weight", "bias", "running_mean", "running_var")):
        values = getattr(norm, name, None)
        columns.append(
            neutral[at].expand(len(rows))
            if values is None
            else values.detach().to(like.dtype).index_select(0, rows)
        )
    return torch.stack(columns, dim=1)


def _behind_flatten(trace: Trace, name: str) -> bool:
    return any(read.layer == name and read.trail.sizes for read in trace.reads)


def _stream_readers(trace: Trace, model: nn.Module) -> Iterable[str]:
    """The first convolution of each block: it reads a residual stream and does not write to another.

    (A convolution that does is the shortcut of a block that changes the stream's width.)
    """
    for layer in trace.layers.values():
        reads = set(layer.in_ids.tolist() if layer.stream_ids is None else layer.stream_ids.tolist())
        if layer.kind != "conv" or FOREIGN in reads or not reads <= trace.summed:
            continue
        module = model.get_submodule(layer.name)
        if type(module) not in SELECTING and selection_of(module) is None:
            continue
        writes = set(layer.out_ids.tolist())
        if not (writes & trace.summed) - reads:
            yield layer.name


class _Finder:
    """Gathers classes of labels into sites."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        size = 1 + max(
            int(ids.max(initial=0))
            for layer in trace.layers.values()
            for ids in (layer.in_ids, layer.out_ids)
        )
        self.site_of = np.full(size, -1, dtype=np.int64)
        self.channel_of = np.full(size, -1, dtype=np.int64)
        self.names: list[str] = []
        self.counts: list[int] = []
        self.order: list[tuple[int, int]] = []
        self.selects: list[str | None] = []
        self.blocks: dict[int, int] = {}
        self.refused: dict[int, str] = {}

    def sites(self) -> tuple[list[Site], dict[str, str]]:
        """The sites in forward order, and what cannot be cut with the reason."""
        self._gather()
        self._check_complaints()
        self._check_groups()
        reads = self._reads()
        numbers = sorted(range(len(self.names)), key=lambda number: self.order[number])
        found, refused = [], {}
        for number in numbers:
            if number in self.refused:
                refused[self.names[number]] = self.refused[number]
            elif reads[number]:
                found.append(self._site(number, reads[number]))
        return found, refused

    def classes(self, name: str) -> Ids:
        """The class of each of the site's channels, `[channel]`."""
        classes = np.flatnonzero(self.site_of == self.names.index(name))
        return classes[np.argsort(self.channel_of[classes])]

    def _gather(self) -> None:
        first_call = {name: at for at, name in reversed(list(enumerate(self.trace.calls)))}
        kept = self.trace.kept

        def claim(ids: Ids, name: str, order: tuple[int, int], selects: str | None) -> None:
            free = [c for c in dict.fromkeys(ids.tolist()) if c not in kept and self.site_of[c] < 0]
            if not free:
                return
            self.site_of[free] = len(self.names)
            self.channel_of[free] = np.arange(len(free))
            self.names.append(name)
            self.counts.append(len(free))
            self.order.append(order)
            self.selects.append(selects)

        layers = [layer for layer in self.trace.layers.values() if layer.name in first_call]
        for layer in layers:
            if layer.stream_ids is not None:
                claim(layer.in_ids, f"{layer.name}.in", (first_call[layer.name], 0), layer.name)
            if layer.produces:
                claim(layer.out_ids, layer.name, (first_call[layer.name], 1), None)
        for layer in layers:
            if layer.kind == "select":
                claim(layer.out_ids, layer.name, (first_call[layer.name], 1), None)

    def _check_complaints(self) -> None:
        for classes, what in self.trace.complaints:
            if classes and not classes - self.trace.kept:
                continue
            inside = [c for c in classes if c < len(self.site_of) and c not in self.trace.kept]
            for number in {int(self.site_of[c]) for c in inside} - {-1}:
                self.refused.setdefault(number, what)

    def _check_groups(self) -> None:
        """Each group of a grouped convolution must keep equally many channels."""
        for layer in self.trace.layers.values():
            if layer.groups == 1 or layer.kind != "conv":
                continue
            for ids in (layer.in_ids, layer.out_ids):
                numbers = set(self.site_of[ids].tolist())
                if numbers == {-1}:
                    continue
                number = max(numbers)
                runs = self.channel_of[ids].reshape(layer.groups, -1)
                whole = np.arange(len(ids)).reshape(layer.groups, -1)
                aligned = numbers == {number} and np.array_equal(np.sort(runs, axis=1), whole)
                if aligned and self.counts[number] == len(ids):
                    self.blocks[number] = lcm(self.blocks.get(number, 1), layer.groups)
                else:
                    for part in numbers - {-1}:
                        what = f"the grouped convolution {layer.name!r}, whose groups they do not fill alone"
                        self.refused.setdefault(part, what)

    def _places(self, ids: Ids, number: int) -> Ids:
        """The positions of a site's channels along an axis, `[channel · copies]` in channel order."""
        positions = np.flatnonzero(self.site_of[ids] == number)
        return positions[np.argsort(self.channel_of[ids[positions]], kind="stable")]

    def _reads(self) -> list[list[tuple[Read, Layer, Ids]]]:
        reads: list[list[tuple[Read, Layer, Ids]]] = [[] for _ in self.names]
        for read in self.trace.reads:
            layer = self.trace.layers[read.layer]
            for number in set(self.site_of[read.trail.ids].tolist()) - {-1}:
                reads[number].append((read, layer, self._places(read.trail.ids, number)))
            if layer.stream_ids is not None and layer.index is not None:
                for number in set(self.site_of[layer.in_ids].tolist()) - {-1}:
                    reads[number].append((read, layer, layer.index[self._places(layer.in_ids, number)]))
        for number, places in enumerate(reads):
            # What a bare selection reads is a copy; F is what the first layer with filters reads.
            places.sort(key=lambda place: (place[1].kind == "select", place[0].order))
            if any(len(at) % self.counts[number] for _, _, at in places):
                self.refused.setdefault(number, "a layer that reads some of them more often than others")
        return reads

    def _site(self, number: int, reads: list[tuple[Read, Layer, Ids]]) -> Site:
        count, trace = self.counts[number], self.trace
        rows = {
            layer.name: Rows(layer.name, tuple(self._places(layer.out_ids, number).tolist()))
            for layer in trace.layers.values()
            if number in self.site_of[layer.out_ids]
        }
        producers = tuple(rows[name] for name in rows if not trace.layers[name].carries)
        carried = tuple(rows[name] for name in rows if trace.layers[name].carries)
        classes = set(np.flatnonzero(self.site_of == number).tolist())
        read, _, positions = reads[0]
        trail = read.trail.at(positions[:: len(positions) // count])
        filters = [row for row in producers if trace.layers[row.module].produces]
        writer = self._last(trail.writer, trail.writer_row) or filters[0]
        parents: tuple[tuple[str, int] | None, ...] = ()
        if self.selects[number] is not None:
            above = self.site_of[trail.ids].tolist()
            at = self.channel_of[trail.ids].tolist()
            parents = tuple((self.names[s], c) if s >= 0 else None for s, c in zip(above, at, strict=True))
        return Site(
            name=self.names[number],
            channels=count,
            root=filters[0].module if filters else writer.module,
            producers=producers,
            carried=carried,
            passed=tuple(name for name, through in trace.passed.items() if classes & through),
            readers=tuple(_reader(read, positions) for read, _, positions in reads),
            writer=writer,
            norm=self._last(trail.norm, trail.norm_row),
            map_size=_map_size(read, len(positions) // count),
            blocks=self.blocks.get(number, 1),
            selects=self.selects[number],
            parents=parents if any(parents) else (),
        )

    def _last(self, calls: Ids, rows: Ids) -> Rows | None:
        """The layer that made all these calls; None where there was none, or several."""
        names = {self.trace.calls[call] if call >= 0 else None for call in calls.tolist()}
        name = names.pop()
        return Rows(name, tuple(rows.tolist())) if name is not None and not names else None


def _reader(read: Read, positions: Ids) -> Reader:
    offset, end = int(positions.min()), int(positions.max()) + 1
    assert read.trail.dim is not None
    return Reader(read.layer, read.call, offset, end - offset, read.trail.dim, tuple(positions.tolist()))


def _map_size(read: Read, pixels: int) -> tuple[int, int]:
    folded = read.trail.sizes if prod(read.trail.sizes) == pixels else (pixels,)
    sizes = (folded if pixels > 1 else ()) + read.spatial
    return (prod(sizes[:-1]), sizes[-1]) if sizes else (1, 1)
