"""Channels as labels: which channels of a network's tensors are the same, and which may be removed.

Every output channel of every producing layer gets a number, its label. A tensor's `Trail` says which
label lies at which position of its channel axis. Where channels meet (a residual add, a gate, a shared
layer) their labels are united: they can only be removed together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ids: TypeAlias = npt.NDArray[np.int64]

# The label of positions that no layer of the network made: the input's channels, padded zeros.
FOREIGN = 0


class Labels:
    """Union-find over labels, with what keeps a label from being removed."""

    def __init__(self) -> None:
        self._parent = [FOREIGN]
        self.kept: set[int] = {FOREIGN}  # left whole, and that is no surprise (outputs, padded zeros)
        self.summed: set[int] = set()  # met another label in an addition: part of a residual stream
        self.complaints: list[Complaint] = []
        self.looks: list[str] = []  # where values were looked at, on which the way through may depend

    def new(self, count: int) -> Ids:
        start = len(self._parent)
        self._parent.extend(range(start, start + count))
        return np.arange(start, start + count, dtype=np.int64)

    def find(self, label: int) -> int:
        root = label
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[label] != root:
            self._parent[label], label = root, self._parent[label]
        return root

    def unite(self, first: Ids, second: Ids) -> None:
        """Channels at the same position of the two can only be removed together."""
        for a, b in zip(first.tolist(), second.tolist(), strict=True):
            root_a, root_b = self.find(a), self.find(b)
            if root_a == root_b:
                continue
            # FOREIGN stands for many unrelated channels, so it keeps others whole but unites none.
            if FOREIGN in (root_a, root_b):
                self.kept.add(max(root_a, root_b))
            else:
                self._parent[max(root_a, root_b)] = min(root_a, root_b)

    def keep(self, labels: Iterable[int]) -> None:
        self.kept.update(int(label) for label in labels)

    def complain(self, labels: Iterable[int], what: str) -> None:
        """Remember that these channels cannot be removed, and why."""
        self.complaints.append(Complaint(frozenset(int(label) for label in labels) - {FOREIGN}, what))

    def resolve(self) -> Ids:
        """The class of every label, `[label]`: equal for channels that are removed together."""
        return np.array([self.find(label) for label in range(len(self._parent))], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Complaint:
    """Channels that an operation ties together in a way that no removal of single channels survives."""

    labels: frozenset[int]
    what: str


@dataclass(frozen=True, slots=True)
class Trail:
    """What lies along the channel axis of one tensor.

    `dim` is that axis (None where an operation mixed the channels and no axis is left); the arrays are
    `[position]`. `writer` and `norm` are the number of the call that last wrote the position, and of the
    last batch-norm it went through (-1: none); `writer_row` and `norm_row` the row there. `sizes` are the
    spatial sizes that a flatten folded into the axis. `mixed` are labels whose channels went into this
    tensor through operations that mix them.
    """

    dim: int | None
    ids: Ids
    writer: Ids
    writer_row: Ids
    norm: Ids
    norm_row: Ids
    sizes: tuple[int, ...] = ()
    mixed: frozenset[int] = field(default=frozenset())

    @classmethod
    def foreign(cls, dim: int | None, count: int) -> Trail:
        """The trail of a tensor that no layer of the network made."""
        none = np.full(count, -1, dtype=np.int64)
        return cls(dim, np.full(count, FOREIGN, dtype=np.int64), none, none, none, none)

    @classmethod
    def lost(cls, labels: Iterable[int]) -> Trail:
        """The trail of a tensor in which these channels are mixed beyond recognition."""
        return replace(cls.foreign(None, 0), mixed=frozenset(int(label) for label in labels) - {FOREIGN})

    @property
    def labels(self) -> frozenset[int]:
        """Every label that went into the tensor."""
        return frozenset(self.ids.tolist()) - {FOREIGN} | self.mixed

    def at(self, positions: Ids) -> Trail:
        """The trail of a tensor whose channel axis holds these positions of this one's."""
        return replace(
            self,
            ids=self.ids[positions],
            writer=self.writer[positions],
            writer_row=self.writer_row[positions],
            norm=self.norm[positions],
            norm_row=self.norm_row[positions],
        )

    def joined(self, others: Iterable[Trail]) -> Trail:
        """The trail of this tensor and the others, one after the other along the channel axis."""
        trails = [self, *others]

        def joined(name: str) -> Ids:
            return np.concatenate([getattr(trail, name) for trail in trails])

        return replace(
            self,
            ids=joined("ids"),
            writer=joined("writer"),
            writer_row=joined("writer_row"),
            norm=joined("norm"),
            norm_row=joined("norm_row"),
            mixed=frozenset().union(*(trail.mixed for trail in trails)),
        )

    def written_over(self, other: Trail) -> Trail:
        """This trail met the other's at every position: at each, the later writer and norm stand."""
        writes, norms = other.writer > self.writer, other.norm > self.norm
        return replace(
            self,
            ids=np.where(self.ids == FOREIGN, other.ids, self.ids),
            writer=np.where(writes, other.writer, self.writer),
            writer_row=np.where(writes, other.writer_row, self.writer_row),
            norm=np.where(norms, other.norm, self.norm),
            norm_row=np.where(norms, other.norm_row, self.norm_row),
            mixed=self.mixed | other.mixed,
        )
