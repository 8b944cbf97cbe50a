"""Ring: each rank sends to the next one only, and all links are busy all the time.

    0 ──► 1 ──► 2 ──► 3        chunk 0 starts on rank 1, is summed on 2, 3 and complete on 0;
    ▲                 │        then 0 hands it to 1, 1 to 2, 2 to 3. The other chunks do the same, shifted.
    └─────────────────┘

        round       1        2        3     |    4        5        6
        rank 0    3 ► 1    2 ► 1    1 ► 1   |  0 ► 1    3 ► 1    2 ► 1      "chunk ► to"
        rank 1    0 ► 2    3 ► 2    2 ► 2   |  1 ► 2    0 ► 2    3 ► 2
        rank 2    1 ► 3    0 ► 3    3 ► 3   |  2 ► 3    1 ► 3    0 ► 3
        rank 3    2 ► 0    1 ► 0    0 ► 0   |  3 ► 0    2 ► 0    1 ► 0
                       reduce-scatter                all-gather

Rounds: 2 (n - 1). Elements sent by a rank: 2 (n - 1) / n * count, the least that any all-reduce over messages can do.
A chunk is cut into segments; a segment moves on while the rest of its chunk still arrives, so the wire never waits for a whole chunk.
Use it for large counts, on few ranks, with one link a host. Small ones pay for the many rounds.
Ranks of a host are neighbours, so a host sends and receives the data once, however many ranks it has.

Paper: P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69(2), 2009.
"""

import numpy as np

from ddltrain.comm.plans.grid import plan_of_grids
from ddltrain.comm.plans.plan import Plan, check_sizes
from ddltrain.comm.topology import Topology


def ring(topology: Topology, count: int, segment_count: int) -> Plan:
    """A ring over all ranks, host after host.

    Args:
        count: elements of the buffer.
        segment_count: elements of a message at most.

    Raises:
        CommError: a size is out of range.
    """
    segment_count = check_sizes(count, segment_count)
    grids = [np.array(topology.order)]
    return plan_of_grids(
        "ring", topology, count, segment_count, grids, ["ring"], f"ring of {topology.world_size}"
    )
