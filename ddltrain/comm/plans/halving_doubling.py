"""Halving-doubling: partners swap halves of what they share, then quarters, eighths, ...; then all the way back.

    8 ranks                    reduce-scatter                         all-gather
    round              1            2            3        |       4            5            6
    partners      0◄►1 2◄►3    0◄►2 1◄►3    0◄►4 1◄►5     |  0◄►4 1◄►5    0◄►2 1◄►3    0◄►1 2◄►3
                  4◄►5 6◄►7    4◄►6 5◄►7    2◄►6 3◄►7     |  2◄►6 3◄►7    4◄►6 5◄►7    4◄►5 6◄►7
    each sends      1/2          1/4          1/8         |    1/8          1/4          1/2      of the data

Any number of ranks: the groups of a round have the size of a prime factor of n, and their members exchange with each other
directly (12 ranks: 2, 2 and 3). Ranks of a host come first, where the largest parts move.

Rounds: 2 * (number of prime factors of n); 2 log2(n) for a power of two.
Elements sent by a rank: 2 (n - 1) / n * count, the least possible (up to rounding).
Use it for middle counts on a number of ranks with small factors. A large prime factor p makes p - 1 messages a round: take a ring then.

Counts up to `doubling_count` go whole, by recursive doubling: in round i, ranks that differ in bit i swap their sums, and both add
the same two. Of 6 ranks, 1 and 3 are folded into their neighbours first, and get the result last:

    8 ranks   0◄►1 2◄►3     0◄►2 1◄►3     0◄►4 1◄►5     |  6 ranks   1►0 3►2    0◄►2 4◄►5    0◄►4 2◄►5    0►1 2►3
              4◄►5 6◄►7     4◄►6 5◄►7     2◄►6 3◄►7     |

Rounds: m = log2(n); where n is no power of two, m = floor(log2(n)) and it is m + 1 for n up to
1.5 * 2^m (4◄►5 above need not wait for 1►0), else m + 2.
Elements sent by a rank: m * count, and count more with a neighbour folded in; only count by a folded rank.

Papers: R. Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; R. Thakur, R. Rabenseifner, W. Gropp,
"Optimization of collective communication operations in MPICH", IJHPCA 19(1), 2005.
"""

import numpy as np

from ddltrain.comm.plans.grid import factors, grid_of, plan_of_grids
from ddltrain.comm.plans.plan import Ints, Kind, Plan, check_sizes, cut, merge, rows, split
from ddltrain.comm.topology import Topology


def halving_doubling(topology: Topology, count: int, segment_count: int, doubling_count: int = 4096) -> Plan:
    """Exchanges between partners at growing distance.

    Args:
        count: elements of the buffer.
        segment_count: elements of a message at most.
        doubling_count: counts up to this are sent whole in each round.

    Raises:
        CommError: a size is out of range.
    """
    segment_count = check_sizes(count, segment_count)
    if count <= doubling_count:
        return _recursive_doubling(topology, count, segment_count)
    local_sizes = {len(host) for host in topology.hosts}
    local_size = local_sizes.pop() if len(local_sizes) == 1 else 1
    dims = [*factors(local_size), *factors(topology.world_size // local_size)] or [1]
    description = f"halving and doubling over {' x '.join(map(str, dims))}"
    grids, exchanges = [grid_of(topology, dims)], ["direct"] * len(dims)
    return plan_of_grids("halving_doubling", topology, count, segment_count, grids, exchanges, description)


def _recursive_doubling(topology: Topology, count: int, segment_count: int) -> Plan:
    size = topology.world_size
    power = size.bit_length() - 1
    messages = _doubling_messages(size, power)

    def build(rank: int) -> Ints:
        segments = cut(split(0, count, 1), segment_count)
        index = np.arange(len(segments.offset))
        return merge(
            [
                rows(
                    kind,
                    time=turn * len(index) + index,
                    peer=topology.order[peer],
                    offset=segments.offset,
                    count=segments.count,
                )
                for kind, peer, turn in messages[topology.order.index(rank)]
            ]
        )

    def sent(rank: int) -> int:
        return count * sum(kind == Kind.SEND for kind, _, _ in messages[topology.order.index(rank)])

    extra = size - (1 << power)
    # The first exchanges need not wait for the folded ranks, as long as these are few.
    num_rounds = power + (extra > 0) + (2 * extra > 1 << power)
    description = f"recursive doubling over {size}"
    return Plan("halving_doubling", topology, count, 1, num_rounds if count else 0, description, build, sent)


def _doubling_messages(size: int, power: int) -> list[list[tuple[Kind, int, int]]]:
    """For each of `size` places its messages: kind, peer, and round. Exchanges are among 2^power places, the others are folded in."""
    extra = size - (1 << power)
    active = [*range(0, 2 * extra, 2), *range(2 * extra, size)]
    messages: list[list[tuple[Kind, int, int]]] = [[] for _ in range(size)]
    for place in range(1, 2 * extra, 2):
        messages[place] = [(Kind.SEND, place - 1, 0), (Kind.RECV, place - 1, power + 1)]
        messages[place - 1].append((Kind.RECV_REDUCE, place, 0))
    for turn in range(power):
        for index, place in enumerate(active):
            peer = active[index ^ (1 << turn)]
            # The send stands first: both ranks of a pair must send what they had before they add what they get.
            messages[place] += [(Kind.SEND, peer, turn + 1), (Kind.RECV_REDUCE, peer, turn + 1)]
    for place in range(1, 2 * extra, 2):
        messages[place - 1].append((Kind.SEND, place, power + 1))
    return messages
