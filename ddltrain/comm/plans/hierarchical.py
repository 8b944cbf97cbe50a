"""Hierarchical: most data moves where links are fast, and each slower tier carries only its share.

With windows: ranks of a host reduce in shared memory, and each moves its own slice between hosts, beside the others.

    host 0         host 1         host 2                1. barrier of the host
    0  1           2  3           4  5                  2. local rank i sums slice i of the windows of its host,
    ▼  ▼           ▼  ▼           ▼  ▼                     the i-th ranks of all hosts all-reduce slice i (ring, ...),
    slice 0:  0 ────► 2 ────► 4 ────► 0                    and copy it to the windows of their host;
    slice 1:  1 ────► 3 ────► 5 ────► 1                    segment by segment, each step as soon as its segment is ready
                                                        3. barrier of the host

With unequal hosts there are as many slices as ranks on the smallest host; further ranks only take part in the barriers.
Rounds: those of `across` over H hosts: 2 (H - 1) for a ring. Elements sent by the ranks of a host together:
2 (H - 1) / H * count, the least possible for one link a host.

Without windows: the same over messages, for any dims X x Y x Z that multiply to n. Reduce-scatter along X (neighbours, so most data stays
in a host), along Y on 1/X of the data, along Z on 1/(X Y); then all-gather along Z, Y, X. Each axis is a "ring" or a "direct" exchange.

    dims 2 x 3        X: 0◄►1  2◄►3  4◄►5  halves      Y: 0►2►4►0  1►3►5►1  sixths

Rounds: the sum over axes of 2 (size - 1) for a ring, of 2 for a direct exchange. Elements sent by a rank: 2 (n - 1) / n * count.
Use it whenever hosts hold several ranks, or switches several hosts.

Papers: M. Cho, U. Finkler, S. Kumar et al., "PowerAI DDL", arXiv:1708.02188, 2017; M. Cho, U. Finkler, M. Serrano et al., "BlueConnect:
decomposing all-reduce for deep learning on heterogeneous network hierarchy", MLSys 2019.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ddltrain.comm.plans.grid import grid_of, plan_of_grids
from ddltrain.comm.plans.halving_doubling import halving_doubling
from ddltrain.comm.plans.multicolor import multicolor
from ddltrain.comm.plans.multiring import multiring
from ddltrain.comm.plans.plan import (
    COUNT,
    KIND,
    OFFSET,
    PEER,
    PHASE,
    TAG,
    Ints,
    Kind,
    Plan,
    check_sizes,
    cut,
    no_rows,
    rows,
    split,
)
from ddltrain.comm.plans.ring import ring
from ddltrain.comm.plans.shared_memory import shared_memory
from ddltrain.comm.plans.steps import ALL_GATHERS
from ddltrain.comm.plans.torus2d import torus2d
from ddltrain.comm.topology import Topology
from ddltrain.errors import CommError

ACROSS: dict[str, Callable[[Topology, int, int], Plan]] = {
    "ring": ring,
    "multiring": multiring,
    "multicolor": multicolor,
    "torus2d": torus2d,
    "halving_doubling": halving_doubling,
}


def hierarchical(
    topology: Topology,
    count: int,
    segment_count: int,
    dims: Sequence[int] | None = None,
    exchanges: Sequence[str] | None = None,
    windows: bool = False,
    across: str = "ring",
) -> Plan:
    """Tier after tier, in shared windows inside hosts or all over messages.

    Args:
        count: elements of the buffer.
        segment_count: elements of a message at most.
        dims: without windows: sizes of the axes, the fastest links first. If None, ranks a host x hosts, or one axis where hosts
            are unequal.
        exchanges: without windows: "ring" or "direct" for each axis. If None, rings.
        windows: the buffers of all ranks lie at equal places in shared windows of their hosts.
        across: with windows: the planner between hosts.

    Raises:
        CommError: a size is out of range, `dims` do not multiply to the number of ranks, or an option does not exist.
    """
    segment_count = check_sizes(count, segment_count)
    if windows:
        return _with_windows(topology, count, segment_count, across)
    if dims is None:
        sizes = {len(host) for host in topology.hosts}
        dims = (sizes.pop(), len(topology.hosts)) if len(sizes) == 1 else (topology.world_size,)
    grid = grid_of(topology, dims)
    exchanges = ["ring"] * len(dims) if exchanges is None else exchanges
    if len(exchanges) != len(dims) or not set(exchanges) <= ALL_GATHERS.keys():
        raise CommError(
            f"exchanges {tuple(exchanges)} must name one of {', '.join(ALL_GATHERS)} for each of {len(dims)} dims"
        )
    description = f"hierarchy of {' x '.join(map(str, dims))}"
    return plan_of_grids("hierarchical", topology, count, segment_count, [grid], exchanges, description)


def _with_windows(topology: Topology, count: int, segment_count: int, across: str) -> Plan:
    if across not in ACROSS:
        raise CommError(f"across = '{across}' is no planner between hosts: take one of {', '.join(ACROSS)}")
    hosts = topology.hosts
    if len(hosts) == 1:
        return replace(shared_memory(topology, count, segment_count), algorithm="hierarchical")
    edges = split(0, count, min(map(len, hosts)))
    between = Topology.flat(len(hosts))
    inner = [ACROSS[across](between, int(length), segment_count) for length in np.diff(edges)]

    def build(rank: int) -> Ints:
        host = topology.host_of(rank)
        index = hosts[host].index(rank)
        table = no_rows()
        if index < len(inner):
            table = inner[index].ops_of(host).copy()
            table[:, PEER] = np.array([ranks[index] for ranks in hosts])[table[:, PEER]]
            table[:, OFFSET] += edges[index]
        return table if len(hosts[host]) == 1 else _between_barriers(table, segment_count)

    def sent(rank: int) -> int:
        index = hosts[topology.host_of(rank)].index(rank)
        return inner[index].sent_elements(topology.host_of(rank)) if index < len(inner) else 0

    return Plan(
        "hierarchical",
        topology,
        count,
        lanes=max(plan.lanes for plan in inner),
        num_rounds=max(plan.num_rounds for plan in inner),
        description=f"{len(inner)} slices in shared memory, {inner[-1].description} hosts between them",
        build=build,
        sent=sent,
        rows_per_tick=1 + max(plan.rows_per_tick for plan in inner),
    )


def _between_barriers(table: Ints, segment_count: int) -> Ints:
    """Put LOCAL_REDUCE before, and LOCAL_SPREAD behind what a slice's table does with each segment, and barriers round all."""
    table = table.copy()
    if table[:, PHASE].max(initial=0) == 0:
        # One phase: each segment's chain begins and ends in the windows.
        _, first = np.unique(table[:, OFFSET], return_index=True)
        last = len(table) - 1 - np.unique(table[::-1, OFFSET], return_index=True)[1]
        reduce, spread = table[first], table[last]
        table[:, PHASE] = reduce[:, PHASE] = spread[:, PHASE] = 1
        order = np.argsort(np.concatenate([2 * first - 1, 2 * np.arange(len(table)), 2 * last + 1]))
    else:
        # Several phases, each cut in its own way: the windows get phases of their own.
        begin, end = table[:, OFFSET].min(), (table[:, OFFSET] + table[:, COUNT]).max()
        slices = cut(np.array([begin, end]), segment_count)
        table[:, PHASE] += 2
        reduce = rows(Kind.LOCAL_REDUCE, phase=1, offset=slices.offset, count=slices.count)
        spread = reduce.copy()
        spread[:, PHASE] = table[:, PHASE].max() + 1
        order = np.argsort(np.repeat([0, 1, 2], [len(reduce), len(table), len(spread)]), kind="stable")
    for local, kind in ((reduce, Kind.LOCAL_REDUCE), (spread, Kind.LOCAL_SPREAD)):
        local[:, [KIND, TAG, PEER]] = [kind, 0, -1]
    body = np.concatenate([reduce, table, spread])[order]
    end_phase = body[:, PHASE].max(initial=0) + 1
    return np.concatenate([rows(Kind.LOCAL_BARRIER), body, rows(Kind.LOCAL_BARRIER, phase=end_phase)])
