"""The sites of a network: where channels can be removed, and what `F`, `W`, `W_I` and `B` are there.

A site is a set of channels that are produced together (by its root), carried along (batch-norm,
activation, pooling, depthwise convolutions) and read, each at known positions of its readers' input.
Channels that meet in a residual add are one site; the parts of a concatenation are several.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from evoprune.errors import SiteError, SiteNameError
from evoprune.networks.layers import SELECTING, selection_of
from evoprune.pruning.channels import FOREIGN, Ids
from evoprune.pruning.follow import Trace, follow
from evoprune.pruning.gather import Gatherer
from evoprune.pruning.site import Reader as Reader
from evoprune.pruning.site import Rows as Rows
from evoprune.pruning.site import Site as Site


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
    ignore = names_in("ignore", "sites", ignore)
    flatten_features = names_in("flatten_features", "fully connected layers", flatten_features)
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
            raise SiteNameError(
                f"flatten_features names fully connected layers behind a flatten, got {name!r}; "
                f"this network has {', '.join(known) or 'none'}"
            )
        chosen.add(name)
    chosen = {name for name in chosen if trace.layers[name].stream_ids is None}
    if chosen:
        trace = follow(model, example_inputs, selected=chosen)
    if selection:
        trace.kept |= trace.summed  # the residual streams keep their width
    finder = Gatherer(trace)
    found, refused = finder.sites()
    known_names = [site.name for site in found] + list(refused)
    for name in ignore:
        if name not in known_names:
            raise SiteNameError(f"ignore names an unknown site {name!r}{hint(name, known_names)}")
    reasons = [f"{name!r}: {what}" for name, what in refused.items() if name not in ignore]
    if reasons and not lenient:
        names = [name for name in refused if name not in ignore]
        raise SiteError(
            "the channels of these sites cannot be removed one by one, because of what is said of each; "
            f"to leave them whole pass ignore={names!r}\n  " + "\n  ".join(reasons)
        )
    left = tuple(site for site in found if site.name not in ignore)
    return Structure(trace, left, {site.name: finder.classes(site.name) for site in left})


def names_in(what: str, of: str, names: Collection[str]) -> tuple[str, ...]:
    """The names in an argument, checked to be a list of them."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        single = f"; a single one is [{names!r}]" if isinstance(names, str) else ""
        raise SiteError(f"{what} is a list of names of {of}, got {names!r}{single}")
    return tuple(names)


def hint(name: object, known: Sequence[str]) -> str:
    """The end of a message about an unknown name: the closest known one, and all of them."""
    close = difflib.get_close_matches(str(name), known, n=1)
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
    return any(r.layer == name and r.trail.sizes and (r.trail.writer >= 0).all() for r in trace.reads)


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
