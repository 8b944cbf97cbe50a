"""2-D torus: half the data is summed along X first and half along Y first, so the links of both axes are busy all the time.

    6 ranks, X = 3, Y = 2          half A: reduce-scatter along X, then along Y; all-gather along Y, then along X
                                   half B: reduce-scatter along Y, then along X; all-gather along X, then along Y
      ┌► 0 ◄──► 1 ◄──► 2 ◄┐
      │  ▲      ▲      ▲  │        each half is two lanes, one for each direction of the rings
      └──┼──────┼──────┼──┘
      ┌► 3 ◄──► 4 ◄──► 5 ◄┐        lane 0: A forward     lane 1: A backward
      │  ▲      ▲      ▲  │        lane 2: B forward     lane 3: B backward
      └──┼──────┼──────┼──┘
         ▼      ▼      ▼
      (Y wraps round like X)

Rounds: 2 (X - 1) + 2 (Y - 1). Elements sent by a rank: 2 (n - 1) / n * count, the least possible.
Use it where hosts form a torus or a mesh of switches, and for middle counts, for which a ring of all ranks has too many rounds.
By default X and Y are as equal as can be. A prime number of ranks is 1 x n, which is a ring in both directions; on rings of 2 ranks both
directions are one and the second lane is not made.

Papers: C. Ying, S. Kumar, D. Chen et al., "Image classification at supercomputer scale", arXiv:1811.06992, 2018;
H. Mikami et al., "Massively distributed SGD: ImageNet/ResNet-50 training in a flash", arXiv:1811.05233, 2018.
"""

import math

from ddltrain.comm.plans.grid import grid_of, plan_of_grids
from ddltrain.comm.plans.plan import Plan, check_sizes
from ddltrain.comm.topology import Topology


def torus2d(topology: Topology, count: int, segment_count: int, dims: tuple[int, int] | None = None) -> Plan:
    """Bidirectional rings along both axes of a grid.

    Args:
        count: elements of the buffer.
        segment_count: elements of a message at most.
        dims: sizes of X (which runs fastest over ranks, host after host) and Y; the most square grid if None.

    Raises:
        CommError: a size is out of range, or `dims` do not multiply to the number of ranks.
    """
    segment_count = check_sizes(count, segment_count)
    grid = grid_of(topology, dims or _square(topology.world_size))
    directions = 2 if max(grid.shape) > 2 else 1
    halves = [grid, grid.transpose()] if min(grid.shape) > 1 else [grid]
    grids = [
        half if forward else half[::-1, ::-1] for half in halves for forward in (True, False)[:directions]
    ]
    description = f"torus of {grid.shape[0]} x {grid.shape[1]}"
    return plan_of_grids("torus2d", topology, count, segment_count, grids, ["ring", "ring"], description)


def _square(number: int) -> tuple[int, int]:
    """The two factors that lie closest together, the larger first."""
    smaller = next(size for size in range(math.isqrt(number), 0, -1) if number % size == 0)
    return number // smaller, smaller
