"""Parts of an all-reduce, as plans of their own.

    reduce_scatter   part r of rank r's buffer becomes the reduction of that part; other parts are left undefined
    all_gather       part r of rank r's buffer goes to all ranks
    across           an all-reduce for each place in a host: of the first ranks of all hosts, of the second ones, ...

The parts are the range cut evenly into as many as there are ranks (`part_of`).
"""

import zlib

import numpy as np

from ddltrain.comm.plans.plan import PEER, Ints, Kind, Plan, check_sizes, cut, merge, rows, split
from ddltrain.comm.plans.ring import ring
from ddltrain.comm.plans.steps import Group, ring_all_gather, ring_reduce_scatter
from ddltrain.comm.topology import Topology

ACROSS = "across"


def part_of(rank: int, world_size: int, count: int) -> slice:
    """The elements that are rank's own among `count`."""
    edges = split(0, count, world_size)
    return slice(int(edges[rank]), int(edges[rank + 1]))


def reduce_scatter(topology: Topology, count: int, segment_count: int, windows: bool) -> Plan:
    """Every rank's own part becomes its reduction over all ranks; `windows` needs one host and data in a window."""
    return _half("reduce_scatter", topology, count, segment_count, Kind.LOCAL_REDUCE if windows else None)


def all_gather(topology: Topology, count: int, segment_count: int, windows: bool) -> Plan:
    """Every rank's own part is copied to all ranks; `windows` needs one host and data in a window."""
    return _half("all_gather", topology, count, segment_count, Kind.LOCAL_SPREAD if windows else None)


def across(topology: Topology, count: int, segment_count: int) -> Plan:
    """The buffers of the ranks with one place in their hosts become their reduction, by a ring; hosts have equally many ranks."""
    hosts = topology.hosts
    between = ring(Topology.flat(len(hosts)), count, segment_count)

    def build(rank: int) -> Ints:
        host = topology.host_of(rank)
        table = between.ops_of(host).copy()
        table[:, PEER] = np.array(hosts)[:, hosts[host].index(rank)][table[:, PEER]]
        return table

    def sent(rank: int) -> int:
        return between.sent_elements(topology.host_of(rank))

    description = f"ring of {len(hosts)} hosts"
    return Plan(
        ACROSS,
        topology,
        count,
        between.lanes,
        between.num_rounds,
        description,
        build,
        sent,
        between.rows_per_tick,
    )


def key_of(plan: Plan, segment_count: int) -> int:
    """A number that tells plans apart, the same on all ranks."""
    return zlib.crc32(f"{plan.algorithm} {plan.description} {plan.count} {segment_count}".encode())


def _half(algorithm: str, topology: Topology, count: int, segment_count: int, local: Kind | None) -> Plan:
    segment_count = check_sizes(count, segment_count)
    size = topology.world_size
    steps = ring_reduce_scatter if algorithm == "reduce_scatter" else ring_all_gather

    def build(rank: int) -> Ints:
        if local is None:
            parts = cut(split(0, count, size), segment_count)
            ticks = int(np.diff(parts.first).max(initial=0))
            return merge(steps(Group(range(size), rank, parts, ticks, phase=0, lane=0), 0))
        own = part_of(rank, size, count)
        body = rows(local, phase=1, offset=own.start, count=own.stop - own.start)
        return merge([rows(Kind.LOCAL_BARRIER), body, rows(Kind.LOCAL_BARRIER, phase=2)])

    def sent(rank: int) -> int:
        sizes = np.diff(split(0, count, size))
        kept = rank if algorithm == "reduce_scatter" else (rank + 1) % size
        return 0 if local is not None else count - int(sizes[kept])

    where = "shared memory" if local is not None else "a ring"
    return Plan(algorithm, topology, count, 1, size - 1, f"{algorithm} over {where}", build, sent)
