"""Multi-color: several trees at once, one color each; a rank does the inner work of one tree at most.

    8 ranks, arity 4: two of eight places are interior, so four colors fit (each its quarter of the data)

    color 0              color 1              color 2              color 3
          0                    2                    4                    6
      ┌──┬┴─┬──┐           ┌──┬┴─┬──┐           ┌──┬┴─┬──┐           ┌──┬┴─┬──┐
      1  2  3  4           3  4  5  6           5  6  7  0           7  0  1  2
    ┌─┼─┐                ┌─┼─┐                ┌─┼─┐                ┌─┼─┐
    5 6 7                7 0 1                1 2 3                3 4 5

Segments are summed up the tree and copied down it, in a pipeline: while one comes down, the next ones go up.
Places are in heap order with k children each, so the first I = ceil((n - 1) / k) places are interior. Color c turns the ranks by c * I;
the colors' interiors are disjoint as long as C <= n / I, and more colors are not made. 6 ranks, arity 4: I = 2, three colors.
Nor are there colors for less than `color_count` elements each: the time of a short message is that of its sending, whatever its length.

Rounds: 2 * depth, where depth = floor(log_k((k - 1) (n - 1) + 1)); 4 for 8 ranks.
Elements sent by a rank: (colors it is not the root of + its children in all trees) * count / C. With C = k that is 2 * count at most:
n / (n - 1) of the least possible. 7/4 * count for each of 8 ranks above, which is the least possible.
Use it for small and middle counts on many hosts: few rounds, and no rank works for more than one tree. It keeps several links busy.

Paper: S. Kumar, D. Sreedhar, V. Saxena, Y. Sabharwal, A. Verma, "Efficient training of convolutional neural nets on large distributed
systems", arXiv:1711.00705, 2017.
"""

from dataclasses import dataclass

import numpy as np

from ddltrain.comm.plans.plan import Cut, Ints, Kind, Plan, check_sizes, cut, merge, rows, split
from ddltrain.comm.topology import Topology
from ddltrain.errors import CommError


def multicolor(
    topology: Topology,
    count: int,
    segment_count: int,
    colors: int = 4,
    arity: int = 4,
    color_count: int = 1024,
) -> Plan:
    """Trees with disjoint interiors, each for its part of the buffer.

    Args:
        count: elements of the buffer.
        segment_count: elements of a message at most.
        colors: how many trees; fewer where there are not so many with disjoint interiors.
        arity: children of an interior rank at most.
        color_count: elements of a tree at least, if there are several.

    Raises:
        CommError: a size is out of range.
    """
    segment_count = check_sizes(count, segment_count)
    if min(colors, arity, color_count) < 1:
        raise CommError(
            "multicolor needs colors, arity and color_count of 1 or more, "
            f"not colors={colors}, arity={arity}, color_count={color_count}"
        )
    size = topology.world_size
    interior = -(-(size - 1) // arity)
    colors = min(colors, size // max(interior, 1), max(1, count // color_count))
    pieces = cut(split(0, count, colors), segment_count)
    trees = [
        _Tree(color, topology.order[color * interior :] + topology.order[: color * interior], arity, pieces)
        for color in range(colors)
    ]
    return Plan(
        "multicolor",
        topology,
        count,
        colors,
        2 * trees[0].depth(size - 1) if count else 0,
        f"{colors} trees of {size}, arity {arity}",
        build=lambda rank: merge([table for tree in trees for table in tree.tables(rank)]),
        sent=lambda rank: sum(tree.sent(rank) for tree in trees),
        rows_per_tick=2 * (min(arity, size - 1) + colors),
    )


@dataclass(frozen=True)
class _Tree:
    """One color. Place 0 of `ranks` is the root; place p has the children k p + 1 to k p + k. Part `color` of `cut` is summed."""

    color: int
    ranks: tuple[int, ...]
    arity: int
    cut: Cut

    def depth(self, place: int) -> int:
        return 0 if place == 0 else 1 + self.depth((place - 1) // self.arity)

    def children(self, place: int) -> range:
        return range(self.arity * place + 1, min(self.arity * (place + 1) + 1, len(self.ranks)))

    def tables(self, rank: int) -> list[Ints]:
        place = self.ranks.index(rank)
        tables = []
        for child in self.children(place):
            tables += self._edge(child, self.ranks[child], Kind.RECV_REDUCE, Kind.SEND)
        if place > 0:
            tables += self._edge(place, self.ranks[(place - 1) // self.arity], Kind.SEND, Kind.RECV)
        return tables

    def _edge(self, child: int, peer: int, up: Kind, down: Kind) -> list[Ints]:
        """Rows of one end of the edge above `child`. A segment climbs and sinks one level for each tick, and one starts each tick."""
        segments = slice(self.cut.first[self.color], self.cut.first[self.color + 1])
        offset, count = self.cut.offset[segments], self.cut.count[segments]
        ticks = np.arange(len(offset)) + self.depth(len(self.ranks) - 1)
        turn = (child - 1) % self.arity  # siblings take turns within a tick
        times = [(ticks + level) * self.arity + turn for level in (-self.depth(child), self.depth(child) - 1)]
        return [
            rows(kind, lane=self.color, time=time, peer=peer, offset=offset, count=count)
            for kind, time in zip((up, down), times, strict=True)
        ]

    def sent(self, rank: int) -> int:
        place = self.ranks.index(rank)
        return self.cut.size(self.color) * (len(self.children(place)) + (place > 0))
