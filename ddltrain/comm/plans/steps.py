"""Reduce-scatter and all-gather within one group of ranks, the two halves of most plans.

The group shares a range cut into as many parts as it has ranks. After `reduce_scatter` the member with index i holds the sum of part i;
`all_gather` then copies the parts to all. Each moves count * (g - 1) / g elements a rank in a group of g, the least that is possible:

    ring     g - 1 rounds, to the next neighbour only        0 ► 1 ► 2 ► 3 ► 0
    direct   1 round, a message to each of the others        0 ◄► 1, 0 ◄► 2, 0 ◄► 3, 1 ◄► 2, ...
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddltrain.comm.plans.plan import Cut, Ints, Kind, rows


@dataclass(frozen=True)
class Group:
    """One rank's view of its group: all members, which of them it is, and the range they share.

    Attributes:
        ticks: what a step takes on the clock; at least the number of segments of any part, and the same in all groups of an axis.
    """

    ranks: Sequence[int]
    index: int
    cut: Cut
    ticks: int
    phase: int
    lane: int

    def member(self, distance: int) -> int:
        """The rank `distance` further on."""
        return int(self.ranks[(self.index + distance) % len(self.ranks)])

    def message(self, kind: Kind, peer: int, part: int, step: int, time: int) -> Ints:
        """Rows for all segments of a part, in one step of a phase that began at `time`."""
        part %= len(self.ranks)
        chosen = slice(self.cut.first[part], self.cut.first[part + 1])
        offset, count = self.cut.offset[chosen], self.cut.count[chosen]
        times = time + step * self.ticks + np.arange(len(offset))
        return rows(kind, phase=self.phase, lane=self.lane, time=times, peer=peer, offset=offset, count=count)

    def duration(self) -> int:
        """How far the clock moves in a reduce-scatter, or an all-gather."""
        return (len(self.ranks) - 1) * self.ticks


def ring_reduce_scatter(group: Group, time: int) -> list[Ints]:
    """Each part starts behind its owner and collects one summand a step until it reaches the owner."""
    tables = []
    for step in range(len(group.ranks) - 1):
        sent = group.index - 1 - step
        tables.append(group.message(Kind.SEND, group.member(1), sent, step, time))
        tables.append(group.message(Kind.RECV_REDUCE, group.member(-1), sent - 1, step, time))
    return tables


def ring_all_gather(group: Group, time: int) -> list[Ints]:
    """Each part starts at its owner and is handed on."""
    tables = []
    for step in range(len(group.ranks) - 1):
        sent = group.index - step
        tables.append(group.message(Kind.SEND, group.member(1), sent, step, time))
        tables.append(group.message(Kind.RECV, group.member(-1), sent - 1, step, time))
    return tables


def direct_reduce_scatter(group: Group, time: int) -> list[Ints]:
    """Each part goes straight to its owner; who sends to whom shifts by one each step, so that no one is sent to by all at once."""
    tables = []
    for step in range(len(group.ranks) - 1):
        to, source = group.index + step + 1, group.member(-step - 1)
        tables.append(group.message(Kind.SEND, group.member(step + 1), to, step, time))
        tables.append(group.message(Kind.RECV_REDUCE, source, group.index, step, time))
    return tables


def direct_all_gather(group: Group, time: int) -> list[Ints]:
    """Each owner sends its part to all others."""
    tables = []
    for step in range(len(group.ranks) - 1):
        source = group.index - step - 1
        tables.append(group.message(Kind.SEND, group.member(step + 1), group.index, step, time))
        tables.append(group.message(Kind.RECV, group.member(-step - 1), source, step, time))
    return tables


REDUCE_SCATTERS = {"ring": ring_reduce_scatter, "direct": direct_reduce_scatter}
ALL_GATHERS = {"ring": ring_all_gather, "direct": direct_all_gather}


def sent_in_group(group: Group, algorithm: str) -> int:
    """Elements that the member sends in a reduce-scatter and an all-gather."""
    size, edges = len(group.ranks), group.cut.edges
    total = int(edges[-1] - edges[0])
    own = group.cut.size(group.index)
    if algorithm == "ring":
        return 2 * total - own - group.cut.size((group.index + 1) % size)
    return total - own + (size - 1) * own


def rounds_in_group(size: int, algorithm: str) -> int:
    """Rounds of a reduce-scatter and an all-gather in a group of `size`."""
    if size == 1:
        return 0
    return 2 * (size - 1) if algorithm == "ring" else 2
