"""Shared memory: the ranks of one host reduce in place, in each other's windows.

    windows of 4 ranks         slice 0 1 2 3           1. all are here (barrier)
                      rank 0        a . . .            2. rank r reads slice r of all windows, reduces, and writes it to all:
                      rank 1        a . . .               rank 0 column a, rank 1 the next, ...
                      rank 2        a . . .            3. all are done (barrier)
                      rank 3        a . . .

Rounds of messages: 0; two barriers. Nothing is sent. A rank reads count elements and writes count elements of memory,
whatever n is, so the host moves 2 n * count: the least there is.
Use it always where all ranks are on one host and their buffers lie in shared windows. `hierarchical` does the same inside each of several.

Paper: R. Graham, G. Shipman, "MPI support for multi-core architectures: optimized shared memory collectives", EuroPVM/MPI 2008.
"""

from ddltrain.comm.plans.plan import Ints, Kind, Plan, check_sizes, cut, merge, no_rows, rows, split
from ddltrain.comm.topology import Topology
from ddltrain.errors import CommError


def shared_memory(topology: Topology, count: int, segment_count: int) -> Plan:
    """In-place reduction among the ranks of one host.

    Args:
        count: elements of the buffer.
        segment_count: elements that are reduced at a time, at most.

    Raises:
        CommError: a size is out of range, or there are several hosts.
    """
    segment_count = check_sizes(count, segment_count)
    if len(topology.hosts) != 1:
        raise CommError(
            f"shared_memory reaches the ranks of one host, and there are {len(topology.hosts)}: take hierarchical"
        )
    size = topology.world_size

    def build(rank: int) -> Ints:
        if size == 1:
            return no_rows()
        slices = cut(split(0, count, size), segment_count)
        index = topology.order.index(rank)
        own = slice(slices.first[index], slices.first[index + 1])
        offset, length = slices.offset[own], slices.count[own]
        reduce = rows(Kind.LOCAL_REDUCE_SPREAD, phase=1, offset=offset, count=length)
        return merge([rows(Kind.LOCAL_BARRIER), reduce, rows(Kind.LOCAL_BARRIER, phase=2)])

    return Plan("shared_memory", topology, count, 1, 0, f"shared memory of {size}", build, lambda rank: 0)
