"""What a plan is: for each rank a table of transfers and reductions, as data.

    KIND         PHASE LANE TAG PEER OFFSET COUNT      rank 1 of a ring of 3, count 6
    SEND           0    0    0   2     0      2        send elements 0 and 1 to rank 2
    RECV_REDUCE    0    0    0   0     4      2        add what rank 0 sends to elements 4 and 5
    SEND           0    0    1   2     4      2        the same segment: runs after the row above (a chain)
    ...

A rank goes through its phases in order and begins one when all its rows of the phase before are done. Within a phase, ranges are
*segments*: any two are equal or disjoint. Rows on one segment run in the order of the table, rows on different segments in any order and
at once. One part of a row does not wait for its chain: the message of a RECV_REDUCE may arrive (beside the buffer) at any time in
its phase, and only the reduction waits. So two ranks can swap the same segment, each with SEND and then RECV_REDUCE, and neither blocks.

Rows stand in the order of a clock that all ranks share: each message has one time, at its sender and at its receiver, and times grow
along every chain. Thus the earliest unfinished message can always go on, even if sends block until they are received and messages between
two ranks are taken one by one: no plan that is built with `merge` can lock up. It is also what numbers the messages: TAG counts those
from one rank to another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ddltrain.comm.topology import Topology
from ddltrain.errors import CommError

Ints = NDArray[np.int64]

KIND, PHASE, LANE, TAG, PEER, OFFSET, COUNT = range(7)
NUM_COLUMNS = 7

# Tags have 20 bits. No planner sends a segment more than twice from one rank to another, so this many segments leave room.
MAX_SEGMENTS = 1 << 18


# A rank stays so close to the clock (`Plan.rows_ahead`). Both are measured: less lets links run dry, more lets them clog.
TICKS_AHEAD = 4
MIN_ROWS_AHEAD = 32


class Kind(IntEnum):
    """What a row does; OFFSET and COUNT give the range of the buffer, in elements."""

    SEND = 0  # the range, to PEER
    RECV = 1  # from PEER, over the range
    RECV_REDUCE = 2  # from PEER: range = range (op) received
    LOCAL_BARRIER = 3  # until all ranks of the host are here, and see each other's memory; alone in its phase
    LOCAL_REDUCE = (
        4  # own range = that range of all ranks of the host, reduced in the order of the host's ranks
    )
    LOCAL_SPREAD = 5  # own range, copied to all other ranks of the host
    LOCAL_REDUCE_SPREAD = 6  # the range of all ranks of the host = their reduction


@dataclass(frozen=True)
class Plan:
    """An all-reduce in place of `count` elements on every rank.

    Attributes:
        algorithm: the planner's name.
        lanes: how many parts run beside each other (rings, trees); the column LANE counts them.
        num_rounds: the longest path of messages, each of which needs the one before: what latency multiplies.
        description: one line for a person, the same on all ranks.
        build: a rank's table, int64 [num_rows, 7].
        sent: by formula, the elements that a rank sends to others.
        rows_per_tick: of the busiest rank, while all lanes are at work.
    """

    algorithm: str
    topology: Topology
    count: int
    lanes: int
    num_rounds: int
    description: str
    build: Callable[[int], Ints] = field(repr=False)
    sent: Callable[[int], int] = field(repr=False)
    rows_per_tick: int = 2
    _tables: dict[int, Ints] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.topology.world_size

    @property
    def rows_ahead(self) -> int:
        """How far a rank may get ahead of itself: it sends nothing that stands so many rows or more behind its first unfinished row.

        What is early at one place fills the links that something late needs at another. Every place has to stay with its lanes, and
        lanes and ranks with each other.
        """
        return max(MIN_ROWS_AHEAD, TICKS_AHEAD * self.rows_per_tick)

    def ops_of(self, rank: int) -> Ints:
        """The table of `rank`, int64 [num_rows, 7]; built when first asked for."""
        if rank not in self._tables:
            self._tables[rank] = self.build(rank) if self.count else no_rows()
        return self._tables[rank]

    def sent_elements(self, rank: int) -> int:
        """How many elements `rank` sends in messages, by the algorithm's formula."""
        return self.sent(rank) if self.count else 0


def check_sizes(count: int, segment_count: int) -> int:
    """The segment length to use: `segment_count`, or more where a huge `count` would need too many segments.

    Raises:
        CommError: `count` is negative, or `segment_count` not positive.
    """
    if count < 0 or segment_count < 1:
        raise CommError(
            f"a plan needs count >= 0 and segment_count >= 1, not count={count}, segment_count={segment_count}"
        )
    return max(segment_count, -(-count // MAX_SEGMENTS))


def no_rows() -> Ints:
    """An empty table."""
    return np.empty((0, NUM_COLUMNS), dtype=np.int64)


def rows(
    kind: Kind,
    *,
    phase: ArrayLike = 0,
    lane: ArrayLike = 0,
    time: ArrayLike = 0,
    peer: ArrayLike = -1,
    offset: ArrayLike = 0,
    count: ArrayLike = 0,
) -> Ints:
    """Rows of one kind from columns (broadcast together), int64 [num_rows, 7], with the time where `merge` will put the tag."""
    columns = np.broadcast_arrays(np.int64(kind), phase, lane, time, peer, offset, count)
    table: Ints = np.stack([np.ravel(column) for column in columns], axis=1, dtype=np.int64)
    return table


def merge(tables: Sequence[Ints]) -> Ints:
    """One rank's table from parts made by `rows`: sorted by phase and time, messages numbered, rows without elements left out.

    Rows of equal phase and time keep the order in which they are given.
    """
    table: Ints = np.concatenate([no_rows(), *tables])
    table = table[(table[:, COUNT] > 0) | (table[:, KIND] == Kind.LOCAL_BARRIER)]
    table = table[np.lexsort((table[:, TAG], table[:, PHASE]))]
    is_send = table[:, KIND] == Kind.SEND
    is_receive = (table[:, KIND] == Kind.RECV) | (table[:, KIND] == Kind.RECV_REDUCE)
    table[:, TAG] = 0
    for chosen in (is_send, is_receive):
        table[chosen, TAG] = _occurrence(table[chosen, PEER])
    return table


def _occurrence(values: Ints) -> Ints:
    """For each value, how many equal ones stand before it."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(values)])
    lengths = np.diff(np.append(first, len(values)))
    occurrence: Ints = np.empty_like(values)
    occurrence[order] = np.arange(len(values)) - np.repeat(first, lengths)
    return occurrence


@dataclass(frozen=True)
class Cut:
    """Consecutive parts of a range, each cut into segments of nearly equal length.

    Attributes:
        edges: where parts begin, and the end, int64 [num_parts + 1].
        first: index of each part's first segment, and the number of segments, int64 [num_parts + 1].
        offset, count: of each segment, int64 [num_segments].
    """

    edges: Ints
    first: Ints
    offset: Ints
    count: Ints

    def size(self, part: int) -> int:
        """The number of elements in a part."""
        return int(self.edges[part + 1] - self.edges[part])


def split(offset: int, count: int, *sizes: int) -> Ints:
    """Edges of a range cut into sizes[0] parts, each of these into sizes[1], ...; lengths differ by 1 at most. int64 [prod + 1]."""
    edges: Ints = np.array([offset, offset + count], dtype=np.int64)
    for size in sizes:
        inner = edges[:-1, None] + np.diff(edges)[:, None] * np.arange(size) // size
        edges = np.concatenate([inner.ravel(), edges[-1:]])
    return edges


def cut(edges: Ints, segment_count: int, pieces_per_part: int = 1) -> Cut:
    """Cut between `edges` into segments of at most `segment_count` elements; a part is `pieces_per_part` consecutive pieces."""
    lengths = np.diff(edges)
    segments = -(-lengths // segment_count)
    first = np.append(0, np.cumsum(segments))
    piece = np.repeat(np.arange(len(lengths)), segments)
    index = np.arange(first[-1]) - first[piece]
    begin = lengths[piece] * index // segments[piece]
    end = lengths[piece] * (index + 1) // segments[piece]
    return Cut(edges[::pieces_per_part], first[::pieces_per_part], edges[piece] + begin, end - begin)
