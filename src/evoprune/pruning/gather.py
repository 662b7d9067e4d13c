"""Classes of labels gathered into sites."""

from __future__ import annotations

from math import lcm, prod

import numpy as np

from evoprune.pruning.channels import Ids
from evoprune.pruning.follow import Layer, Read, Trace
from evoprune.pruning.site import Reader, Rows, Site


class Gatherer:
    """Gathers classes of labels into sites."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        layers = trace.layers.values()
        size = 1 + max(
            (int(ids.max(initial=0)) for layer in layers for ids in (layer.in_ids, layer.out_ids)), default=0
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
            elif not reads[number]:
                refused[self.names[number]] = "something that cannot be followed, or nothing, reads them"
            elif (site := self._site(number, reads[number])) is None:
                refused[self.names[number]] = "no layer with filters writes them"
            else:
                found.append(site)
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
                        what = f"they do not fill the groups of the grouped convolution {layer.name!r} alone"
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
                self.refused.setdefault(number, "a layer reads some of them more often than others")
        return reads

    def _site(self, number: int, reads: list[tuple[Read, Layer, Ids]]) -> Site | None:
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
        writer = self._last(trail.writer, trail.writer_row)
        if writer is None and filters:
            rows_each = len(filters[0].rows) // count
            writer = Rows(filters[0].module, filters[0].rows[::rows_each])
        if writer is None:
            return None
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
