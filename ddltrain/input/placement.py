"""Which rank holds which record, and what must travel from one epoch to the next. Pure functions; nothing here communicates.

A set that does not fit one host lies spread over the ranks of a group, each record once in each group. In an epoch a record lies with
the rank of the group that visits it, so that decoding is always local; where a rank of another group visits it, the ranks here take
such records in turn. A rank's region of memory is sorted by the segment of the epoch that uses a record up, and inside that by the
segment of the epoch before that brought it:

    epoch e      | used in segment 0 | segment 1 | segment 2 |        all of segment k is used: it travels on,
                        |  |  |                                       and its memory is given back
    epoch e + 1  | 0: 0 1 2 | 1: 0 1 2 | 2: 0 1 2 |                   each part is filled from left to right

The first epoch is filled in the same way from the disk's order, of which each rank of a group reads a consecutive share.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddltrain.input.order import Ints, StepPlan, epoch_order

Group = tuple[int, ...]  # the ranks of the world that together hold one whole copy, in order


@dataclass(frozen=True)
class Placement:
    """Where the records of a group lie for an epoch, or while they are read from the disk.

    Attributes:
        order: record at each position, int32 [num_records].
        holder: index in the group of the rank that holds it, by position.
        segment: by position, never falling for any one holder.
        num_segments: segments in all.
        is_visit: by position, whether the holder visits the record, or holds it for the next epoch only.
    """

    order: NDArray[np.int32]
    holder: NDArray[np.unsignedinteger]
    segment: NDArray[np.unsignedinteger]
    num_segments: int
    is_visit: NDArray[np.bool_]


def place_epoch(plan: StepPlan, group: Group, num_segments: int, seed: int, epoch: int) -> Placement:
    """The placement of an epoch, whose steps are cut evenly into segments."""
    edges = plan.rank_edges()
    counts = np.diff(edges).ravel()
    num_left = plan.num_records - int(edges[-1, -1])  # what "drop" leaves out
    index = np.full(plan.world_size, len(group), np.min_scalar_type(len(group)))
    index[list(group)] = np.arange(len(group))
    visitor = np.repeat(np.tile(index, plan.num_steps), counts)
    holder = np.concatenate([visitor, np.full(num_left, len(group), index.dtype)])
    is_visit = holder < len(group)
    holder[~is_visit] = np.arange(plan.num_records - np.count_nonzero(is_visit)) % len(group)
    segments = segment_of(np.arange(plan.num_steps), plan.num_steps, num_segments)
    segment = np.repeat(
        segments.astype(np.min_scalar_type(num_segments)), np.diff(edges[:, [0, -1]], axis=1)[:, 0]
    )
    segment = np.concatenate([segment, np.full(num_left, num_segments - 1, segment.dtype)])
    order = epoch_order(plan.num_records, seed, epoch)
    return Placement(order, holder, segment, num_segments, is_visit)


def place_on_disk(sizes: NDArray[np.integer], group: Group, num_segments: int) -> Placement:
    """Consecutive shares of about equal bytes, each cut into segments of about equal bytes."""
    num_pieces = len(group) * num_segments
    ends = np.cumsum(sizes, dtype=np.int64)
    total = max(1, int(ends[-1]))
    piece = np.minimum((ends - 1).clip(0) * num_pieces // total, num_pieces - 1)
    return Placement(
        np.arange(len(sizes), dtype=np.int32),
        (piece // num_segments).astype(np.min_scalar_type(len(group))),
        (piece % num_segments).astype(np.min_scalar_type(num_segments)),
        num_segments,
        np.zeros(len(sizes), np.bool_),
    )


def segment_of(step: Ints, num_steps: int, num_segments: int) -> Ints:
    """The segment that each step belongs to."""
    return step * num_segments // num_steps


@dataclass(frozen=True)
class Layout:
    """What one rank holds and where in its region, sorted by segment.

    Attributes:
        records: int32 [n], by place.
        starts: int64 [n + 1], bytes.
        segment_edges: int64 [num_segments + 1], the bytes where the segments begin and the last one ends.
    """

    records: NDArray[np.int32]
    starts: Ints
    segment_edges: Ints

    @property
    def num_bytes(self) -> int:
        return int(self.starts[-1])


@dataclass(frozen=True)
class Parcels:
    """Records by (segment, peer): where they lie, in the order in which they travel.

    Attributes:
        starts: int64 [n], bytes in the rank's region.
        sizes: int32 [n], bytes.
        edges: int64 [num_segments, num_peers + 1]: the records of segment k for peer p are edges[k, p] to edges[k, p + 1] - 1.
    """

    starts: Ints
    sizes: NDArray[np.int32]
    edges: Ints


@dataclass(frozen=True)
class Move:
    """One rank's part in the change from a placement to the next.

    Attributes:
        leaving, arriving: from the rank's old region, and into its new one.
        layout: of the new region.
        visited, visited_starts: the records that the rank visits afterwards, in that order, int32 [n], and where they begin, int64 [n].
    """

    leaving: Parcels
    arriving: Parcels
    layout: Layout
    visited: NDArray[np.int32]
    visited_starts: Ints


def lay_out_disk(disk: Placement, sizes: NDArray[np.integer], own: int) -> Layout:
    """What rank `own` of the group reads, in the order of the disk."""
    mine = disk.holder == own
    return _lay_out(disk.order[mine], disk.segment[mine], disk.num_segments, sizes)


def plan_move(
    old: Placement, held: Layout, new: Placement, sizes: NDArray[np.integer], own: int, num_peers: int
) -> Move:
    """What rank `own` of the group sends, receives and then has.

    Args:
        held: the rank's layout in the old placement.
        sizes: bytes of all records.
        num_peers: ranks in the group.
    """
    source, stage = np.empty_like(old.holder), np.empty_like(old.segment)  # by record
    source[old.order], stage[old.order] = old.holder, old.segment

    # In the order of the new positions on both sides, so that sender and receiver agree without a word.
    is_mine = new.holder == own
    coming = new.order[is_mine]
    by_place = np.lexsort((stage[coming], new.segment[is_mine]))  # stable
    layout = _lay_out(coming[by_place], new.segment[is_mine][by_place], new.num_segments, sizes)
    starts = np.empty(len(coming), np.int64)
    starts[by_place] = layout.starts[:-1]
    arriving = _parcels(stage[coming], source[coming], starts, sizes[coming], old.num_segments, num_peers)

    goes = source[new.order] == own
    going = new.order[goes]
    by_record = np.argsort(held.records)
    places = by_record[np.searchsorted(held.records, going, sorter=by_record)]
    leaving = _parcels(
        stage[going], new.holder[goes], held.starts[places], sizes[going], old.num_segments, num_peers
    )
    is_visit = new.is_visit[is_mine]
    return Move(leaving, arriving, layout, coming[is_visit], starts[is_visit])


def _lay_out(
    records: NDArray[np.int32],
    segments: NDArray[np.unsignedinteger],
    num_segments: int,
    sizes: NDArray[np.integer],
) -> Layout:
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[records], dtype=np.int64)])
    return Layout(records, starts, starts[np.searchsorted(segments, np.arange(num_segments + 1))])


def _parcels(
    stage: NDArray[np.unsignedinteger],
    peer: NDArray[np.unsignedinteger],
    starts: Ints,
    sizes: NDArray[np.integer],
    num_stages: int,
    num_peers: int,
) -> Parcels:
    order = np.lexsort((peer, stage))  # stable: inside a parcel the order stays
    keys = stage[order].astype(np.int64) * num_peers + peer[order]
    edges = np.searchsorted(
        keys, np.arange(num_stages)[:, None] * num_peers + np.arange(num_peers + 1)[None, :]
    )
    return Parcels(starts[order], sizes[order].astype(np.int32), edges)
