"""The verifier finds what is broken. Each test breaks a good plan in one way."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ddltrain.comm.plans import PLANNERS
from ddltrain.comm.plans.hierarchical import hierarchical
from ddltrain.comm.plans.plan import COUNT, KIND, LANE, OFFSET, PEER, PHASE, TAG, Ints, Kind, Plan
from ddltrain.comm.replay import PlanError, gather_rows, play
from ddltrain.comm.topology import Topology
from ddltrain.comm.verify import _check_windows, verify

RING = PLANNERS["ring"](Topology.flat(4), 40, 5)


def changed(plan: Plan, change: Callable[[int, Ints], Ints]) -> Plan:
    """The plan with every rank's table changed."""
    return replace(plan, build=lambda rank: change(rank, plan.ops_of(rank).copy()))


def on_rank(chosen: int, edit: Callable[[Ints], Ints]) -> Callable[[int, Ints], Ints]:
    return lambda rank, table: edit(table) if rank == chosen else table


def edited(row: int, column: int, value: int) -> Callable[[Ints], Ints]:
    def edit(table: Ints) -> Ints:
        table[row, column] = value
        return table

    return edit


def swapped(column: int) -> Callable[[Ints], Ints]:
    """Swap a column of the first two sends."""

    def edit(table: Ints) -> Ints:
        first, second = np.flatnonzero(table[:, KIND] == Kind.SEND)[:2]
        table[[first, second], column] = table[[second, first], column]
        return table

    return edit


def refuses(plan: Plan, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        verify(plan)


def test_the_plan_is_good_before() -> None:
    verify(RING)
    verify(changed(RING, lambda rank, table: table))


@pytest.mark.parametrize("row", range(len(RING.ops_of(2))))
def test_dropped_row(row: int) -> None:
    refuses(changed(RING, on_rank(2, lambda table: np.delete(table, row, axis=0))), "no partner")


def test_dropped_message() -> None:
    """Both ends are gone, so everything matches, but a sum lacks a part."""

    def drop(rank: int, table: Ints) -> Ints:
        last_send = (rank == 1) & (table[:, KIND] == Kind.SEND) & (table[:, TAG] == 0)
        last_receive = (rank == 2) & (table[:, KIND] == Kind.RECV_REDUCE) & (table[:, TAG] == 0)
        return table[~(last_send | last_receive)]

    refuses(changed(RING, drop), "lack the input of rank 1")


def test_swapped_tags() -> None:
    refuses(changed(RING, on_rank(1, swapped(TAG))), "different ranges")


def test_swapped_rows() -> None:
    """Messages that are posted in another order than they are sent need not lock up, but may."""

    def swap(table: Ints) -> Ints:
        table[[0, 2]] = table[[2, 0]]
        return table

    refuses(changed(RING, on_rank(1, swap)), "deadlock")


@pytest.mark.parametrize(("column", "value"), [(OFFSET, 1), (COUNT, 4)])
def test_changed_range(column: int, value: int) -> None:
    refuses(changed(RING, on_rank(1, edited(0, column, value))), "different ranges")


def test_changed_range_at_both_ends() -> None:
    def shift(rank: int, table: Ints) -> Ints:
        chosen = (table[:, TAG] == 0) & (table[:, KIND] == (Kind.SEND if rank == 1 else Kind.RECV_REDUCE))
        if rank in (1, 2):
            table[chosen, OFFSET] += 1
        return table

    refuses(changed(RING, shift), "overlaps another range")


def test_doubled_reduction() -> None:
    def double(rank: int, table: Ints) -> Ints:
        kind = Kind.SEND if rank == 1 else Kind.RECV_REDUCE
        if rank not in (1, 2):
            return table
        row = np.flatnonzero((table[:, KIND] == kind) & (table[:, TAG] == 0))[0]
        again = table[row].copy()
        again[TAG] = 1000
        return np.insert(table, row + 1, again, axis=0)

    refuses(changed(RING, double), "added twice: rank 2")


def test_copy_in_place_of_sum() -> None:
    def overwrite(table: Ints) -> Ints:
        table[np.argmax(table[:, KIND] == Kind.RECV_REDUCE), KIND] = Kind.RECV
        return table

    refuses(changed(RING, on_rank(3, overwrite)), "lack the input of rank 3")


def test_same_tag_twice() -> None:
    refuses(changed(RING, on_rank(1, edited(2, TAG, 0))), "used twice")


def test_cyclic_wait() -> None:
    """Two ranks that each receive, on one segment, before they send."""
    rows = [[1, 0, 0, 0, 0, 0, 4], [0, 0, 0, 0, 0, 0, 4]]

    def build(rank: int) -> Ints:
        table = np.array(rows)
        table[:, PEER] = 1 - rank
        return table

    plan = Plan("ring", Topology.flat(2), 4, 1, 1, "", build, lambda rank: 4)
    refuses(plan, "deadlock: 4 rows never finish, the first is rank 0 phase 0 lane 0 RECV")


def test_swap_of_one_segment_is_no_deadlock() -> None:
    """Send, then reduce: the message may come before the send is done. Overwriting may not."""
    tables = {kind: np.array([[0, 0, 0, 0, 0, 0, 4], [kind, 0, 0, 0, 0, 0, 4]]) for kind in Kind}

    def plan(kind: Kind) -> Plan:
        def build(rank: int) -> Ints:
            table = tables[kind].copy()
            table[:, PEER] = 1 - rank
            return table

        return Plan("ring", Topology.flat(2), 4, 1, 1, "", build, lambda rank: 4)

    verify(plan(Kind.RECV_REDUCE))
    refuses(plan(Kind.RECV), "deadlock")


def test_phases_can_lock_up() -> None:
    """Each rank sends in its first phase what the other receives in its second."""

    def build(rank: int) -> Ints:
        kinds = [Kind.SEND, Kind.RECV_REDUCE]
        return np.array([[kind, phase, 0, 0, 1 - rank, 0, 4] for phase, kind in enumerate(kinds)])

    refuses(Plan("ring", Topology.flat(2), 4, 1, 1, "", build, lambda rank: 4), "deadlock")


def test_another_order_of_sums() -> None:
    """Three ranks that each add up in an order of their own: all inputs are there, but bits may differ."""

    def build(rank: int) -> Ints:
        before, behind = (rank - 1) % 3, (rank + 1) % 3
        return np.array(
            [
                [Kind.SEND, 0, 0, 0, before, 0, 4],
                [Kind.SEND, 0, 0, 0, behind, 0, 4],
                [Kind.RECV_REDUCE, 0, 0, 0, before, 0, 4],
                [Kind.RECV_REDUCE, 0, 0, 0, behind, 0, 4],
            ]
        )

    refuses(
        Plan("ring", Topology.flat(3), 4, 1, 1, "", build, lambda rank: 8), "in another order than on rank 0"
    )


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        (PEER, 9, "no such peer"),
        (PEER, 1, "no such peer"),
        (TAG, 1 << 20, "no such peer"),
        (LANE, 1, "wrong lane"),
    ],
)
def test_values_out_of_range(column: int, value: int, words: str) -> None:
    refuses(changed(RING, on_rank(1, edited(0, column, value))), words)


def test_ranges_out_of_the_buffer() -> None:
    refuses(replace(RING, count=39), "wrong range")


def test_phases_out_of_order() -> None:
    refuses(changed(RING, on_rank(1, edited(0, PHASE, 3))), "wrong phase order")


def test_wrong_formulas() -> None:
    refuses(replace(RING, sent=lambda rank: 61), "rank 0 sends 60 elements, by formula 61")
    refuses(replace(RING, num_rounds=5), "6 rounds, by formula 5")


WINDOWS = hierarchical(Topology.of_sizes((2, 2)), 40, 5, windows=True)


def without(kind: Kind, rank: int, turn: int = 0) -> Plan:
    def drop(table: Ints) -> Ints:
        return np.delete(table, np.flatnonzero(table[:, KIND] == kind)[turn], axis=0)

    return changed(WINDOWS, on_rank(rank, drop))


def test_windows() -> None:
    verify(WINDOWS)
    refuses(without(Kind.LOCAL_BARRIER, rank=1), "barrier 1 of host 0 is missing")
    refuses(without(Kind.LOCAL_REDUCE, rank=0), "lack the input of rank")
    refuses(without(Kind.LOCAL_SPREAD, rank=3), "rank 2 lack the input of rank")


def test_two_ranks_in_one_slice() -> None:
    """Both ranks of a host reduce the same elements, and write them to both windows."""
    plan = PLANNERS["shared_memory"](Topology.of_sizes((2,)), 10, 100)

    def widen(rank: int, table: Ints) -> Ints:
        table[1, OFFSET], table[1, COUNT] = 0, 10
        return table

    refuses(changed(plan, widen), "added twice: rank 0")


def test_race_that_does_not_show_in_the_sums() -> None:
    """A rank also reads its neighbour's slice, which is written in the same period."""
    plan = PLANNERS["shared_memory"](Topology.of_sizes((2,)), 10, 100)

    def spread_again(table: Ints) -> Ints:
        extra = table[1].copy()
        extra[KIND], extra[OFFSET] = Kind.LOCAL_SPREAD, 5
        return np.insert(table, 2, extra, axis=0)

    refuses(changed(plan, on_rank(0, spread_again)), "may use these elements meanwhile: rank 1")


def test_reading_what_another_rank_writes() -> None:
    """Rank 0 writes to the window of rank 1, which sends from there in the same period."""

    def build(rank: int) -> Ints:
        barrier = [Kind.LOCAL_BARRIER, 0, 0, 0, -1, 0, 0]
        spread, send = [Kind.LOCAL_SPREAD, 1, 0, 0, -1, 0, 4], [Kind.SEND, 1, 0, 0, 2, 0, 4]
        receive = [Kind.RECV, 0, 0, 0, 1, 0, 4]
        return np.array([[barrier, spread], [barrier, send], [receive]][rank])

    plan = Plan("ring", Topology.of_sizes((2, 1)), 4, 1, 1, "", build, lambda rank: 0)
    with pytest.raises(PlanError, match=r"may use these elements meanwhile: rank 1 .* SEND"):
        _check_windows(gather_rows(plan))


def test_crowded_barrier() -> None:
    refuses(changed(WINDOWS, on_rank(0, edited(0, PHASE, 1))), "not alone in its phase")


def test_promises_of_colors_and_rings() -> None:
    shared = replace(PLANNERS["torus2d"](Topology.flat(4), 40, 10), algorithm="multicolor")
    refuses(shared, "interior place of several colors")
    twice = replace(PLANNERS["torus2d"](Topology.flat(5), 40, 10), algorithm="multiring")
    verify(twice)
    refuses(replace(PLANNERS["torus2d"](Topology.flat(6), 40, 10), algorithm="multiring"), "no circle")


def test_sends_far_behind_an_unfinished_row_are_held_back() -> None:
    """Two ranks that list all they receive before all they send: it comes to an end just if they may run so far ahead."""

    def build(rank: int) -> Ints:
        receives = [[Kind.RECV_REDUCE, 0, 0, tag, 1 - rank, 2 * tag + rank, 1] for tag in range(50)]
        sends = [[Kind.SEND, 0, 0, tag, 1 - rank, 2 * tag + 1 - rank, 1] for tag in range(50)]
        return np.array(receives + sends)

    plan = Plan("ring", Topology.flat(2), 100, 1, 1, "", build, lambda rank: 50, rows_per_tick=13)
    assert len(list(play(gather_rows(plan)))) == 200
    refuses(replace(plan, rows_per_tick=12), "deadlock")
