"""A lane over a grid of ranks: reduce-scatter along each axis in turn, each on the part left by the one before, and all-gather back.

    axis 0 (3 ranks)        axis 1 (2 ranks), on a third of the range
    0 ► 1 ► 2 ► 0           0 ◄► 3
    3 ► 4 ► 5 ► 3           1 ◄► 4
                            2 ◄► 5

A grid of one axis is a ring (or a direct exchange). Ranges of which each rank's part is a quarter of a segment or more are cut so finely
from the start that all axes use the same segments; then all is one phase, and a segment goes on to the next axis when it is ready. In
smaller ones each axis is a phase, with as few messages as can be.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddltrain.comm.plans.plan import Ints, Plan, cut, merge, split
from ddltrain.comm.plans.steps import ALL_GATHERS, REDUCE_SCATTERS, Group, rounds_in_group, sent_in_group
from ddltrain.comm.topology import Topology
from ddltrain.errors import CommError


def grid_of(topology: Topology, dims: Sequence[int]) -> Ints:
    """The ranks, host after host, laid out on a grid; the first axis runs fastest, so that it stays inside hosts. int64 [dims].

    Raises:
        CommError: the sizes do not multiply to the number of ranks.
    """
    if min(dims, default=0) < 1 or math.prod(dims) != topology.world_size:
        product = " x ".join(map(str, dims))
        raise CommError(
            f"dims {product} make {math.prod(dims)} places, but there are {topology.world_size} ranks: "
            "choose sizes that multiply to the number of ranks"
        )
    return np.array(topology.order).reshape(tuple(reversed(dims))).transpose()


def factors(number: int) -> list[int]:
    """The prime factors of a number in rising order; none for 1."""
    divisor = next((divisor for divisor in range(2, math.isqrt(number) + 1) if number % divisor == 0), number)
    return [] if number == 1 else [divisor, *factors(number // divisor)]


@dataclass(frozen=True)
class Lane:
    """One grid and its range of the buffer.

    Attributes:
        ranks: the rank at each place, int64 [sizes of the axes].
        exchanges: "ring" or "direct" for each axis.
        fine: all axes use the same segments, in one phase.
    """

    number: int
    ranks: Ints
    exchanges: Sequence[str]
    offset: int
    count: int
    segment_count: int
    fine: bool

    def groups(self, rank: int) -> list[tuple[Group, str]]:
        """The groups of `rank`, and how each exchanges, along the axes in turn; axes of size 1 are left out."""
        place = tuple(int(index[0]) for index in np.nonzero(self.ranks == rank))
        shape = self.ranks.shape
        offset, count = self.offset, self.count
        found: list[tuple[Group, str]] = []
        for axis, exchange in enumerate(self.exchanges):
            if shape[axis] == 1:
                continue
            later = shape[axis + 1 :] if self.fine else ()
            pieces = cut(split(offset, count, shape[axis], *later), self.segment_count, math.prod(later))
            ranks = np.moveaxis(self.ranks, axis, -1)[(*place[:axis], *place[axis + 1 :])]
            # By the longest part of all ranks, not of this one: the clock must be the same for all.
            longest = -(-self.count // math.prod(shape[: axis + 1] + later))
            ticks = -(-longest // self.segment_count) * math.prod(later)
            phase = 0 if self.fine else len(found)
            found.append((Group(ranks.tolist(), place[axis], pieces, ticks, phase, self.number), exchange))
            offset, count = int(pieces.edges[place[axis]]), pieces.size(place[axis])
        return found

    def tables(self, rank: int) -> list[Ints]:
        """The rows of `rank`, for `merge`."""
        tables, time = [], 0
        groups = self.groups(rank)
        for group, exchange in groups:
            tables += REDUCE_SCATTERS[exchange](group, time)
            time += group.duration()
        for group, exchange in reversed(groups):
            # The phases of the way back mirror those of the way there. The last axis keeps its phase, as it keeps its segments.
            back = replace(group, phase=2 * groups[-1][0].phase - group.phase)
            tables += ALL_GATHERS[exchange](back, time)
            time += group.duration()
        return tables

    def sent(self, rank: int) -> int:
        """Elements that `rank` sends."""
        return sum(sent_in_group(group, exchange) for group, exchange in self.groups(rank))


def plan_of_grids(
    algorithm: str,
    topology: Topology,
    count: int,
    segment_count: int,
    grids: Sequence[Ints],
    exchanges: Sequence[str],
    description: str,
) -> Plan:
    """A plan with one lane for each grid, all beside each other and with equal shares of the buffer."""
    # A rank's phase spans its lanes: where their axes differ, phases would make the shorter wait for the longer.
    alike = len({grid.shape for grid in grids}) == 1
    fine = not alike or 4 * count // len(grids) // topology.world_size >= segment_count
    edges = split(0, count, len(grids))
    lanes = [
        Lane(number, grid, exchanges, int(begin), int(end - begin), segment_count, fine)
        for number, (grid, begin, end) in enumerate(zip(grids, edges[:-1], edges[1:], strict=True))
    ]
    return Plan(
        algorithm,
        topology,
        count,
        len(lanes),
        sum(map(rounds_in_group, grids[0].shape, exchanges)) if count else 0,
        description,
        build=lambda rank: merge([table for lane in lanes for table in lane.tables(rank)]),
        sent=lambda rank: sum(lane.sent(rank) for lane in lanes),
        rows_per_tick=2 * len(lanes),
    )
