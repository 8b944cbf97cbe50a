"""Multi-ring: several rings at once, over different orders and in both directions, each with its share of the data.

    lane 0: stride 1        lane 1: backward        lane 2: stride 3               lane 3: backward
    0 ► 1 ► 2 ► ... ► 0     0 ► 7 ► 6 ► ... ► 0     0 ► 3 ► 6 ► 1 ► 4 ► ... ► 0    0 ► 5 ► 2 ► 7 ► ... ► 0

Host h sends to host h + stride (mod hosts). The stride and the number of hosts have no common factor, so the ring passes all hosts; strides
differ, so no two rings use one link in the same direction. Of H hosts there are phi(H) rings at most (8: 4; 6: 2; 16: 8; 2: 1): more are
not made. Inside a host the ranks follow each other, turned by one each second ring, so that rings enter and leave by different ranks.
On one host the strides are over its ranks.

Rounds: 2 (n - 1). Elements sent by a rank: 2 (n - 1) / n * count, as in one ring.
Use it for large counts where a host has several links, or where a network has several paths, which one ring leaves idle.

Papers: M. Cho, U. Finkler, S. Kumar et al., "PowerAI DDL", arXiv:1708.02188, 2017 (several rings at once); W. Wang, M. Khazraee,
Z. Zhong et al., "TopoOpt: co-optimizing network topology and parallelization strategy for distributed training jobs", NSDI 2023 (strides).
"""

import math

import numpy as np

from ddltrain.comm.plans.grid import plan_of_grids
from ddltrain.comm.plans.plan import Ints, Plan, check_sizes
from ddltrain.comm.topology import Topology
from ddltrain.errors import CommError


def multiring(topology: Topology, count: int, segment_count: int, rings: int = 2) -> Plan:
    """Rings over strided orders, forward and backward by turns.

    Args:
        count: elements of the buffer.
        segment_count: elements of a message at most.
        rings: how many; fewer where there are not so many without a common link.

    Raises:
        CommError: a size is out of range.
    """
    segment_count = check_sizes(count, segment_count)
    if rings < 1:
        raise CommError(f"multiring needs rings >= 1, not {rings}")
    orders = ring_orders(topology, rings)
    description = f"{len(orders)} rings of {topology.world_size}"
    return plan_of_grids("multiring", topology, count, segment_count, orders, ["ring"], description)


def ring_orders(topology: Topology, rings: int) -> list[Ints]:
    """The ranks in the order of each ring, int64 [world_size]."""
    units = topology.hosts if len(topology.hosts) > 1 else tuple((rank,) for rank in topology.order)
    strides = [stride for stride in range(1, len(units)) if math.gcd(stride, len(units)) == 1] or [1]
    # A stride beside its complement, which is the same ring backward.
    pairs = [(stride, len(units) - stride) for stride in strides if 2 * stride <= len(units)] or [(1, 1)]
    directions = [stride for pair in pairs for stride in dict.fromkeys(pair)][:rings]
    return [_order(units, stride, turn=lane // 2) for lane, stride in enumerate(directions)]


def _order(units: tuple[tuple[int, ...], ...], stride: int, turn: int) -> Ints:
    backward = 2 * stride > len(units)
    order = []
    for step in range(len(units)):
        unit = units[step * stride % len(units)]
        turned = np.roll(unit, -turn)
        order += (turned[::-1] if backward else turned).tolist()
    return np.array(order)
