"""Sets spread over ranks: what each rank visits is right to the byte, epoch after epoch, in the order that one rank would take."""

import time
from collections.abc import Sequence

import numpy as np
import pytest
from fake_source import FakeSource

from ddltrain.comm.world import World
from ddltrain.input.hosts import Hosts, find_hosts
from ddltrain.input.memory import Held, Memory, OwnPart, WholeSet
from ddltrain.input.order import StepPlan, epoch_order, eval_visits
from ddltrain.input.sharded import ExchangeTimes, ShardedSet

SEED = 11
SEGMENT_BYTES = 1 << 20  # of some 13 MB that a rank of eight holds


def visit(
    memory: Memory, source: FakeSource, plan: StepPlan, rank: int, epoch: int, first_step: int = 0
) -> np.ndarray:
    """The records that a rank visits, their bytes checked batch by batch, each after all that may leave before it has left."""
    held = memory.open(epoch)
    edges = plan.visits(rank).edges()
    assert len(held.records) == edges[-1]
    memory.passed(first_step)
    for step in range(first_step, plan.num_steps):
        if isinstance(memory, ShardedSet):
            wait_for_all_that_may_leave(memory)
        check(held, source, slice(edges[step], edges[step + 1]))
        memory.passed(step + 1)
    return held.records[edges[first_step] :]


def wait_for_all_that_may_leave(memory: ShardedSet) -> None:
    exchange = memory._exchange
    assert exchange is not None
    exchange.wait(exchange._allowed)


def check(held: Held, source: FakeSource, part: slice) -> None:
    block, starts, sizes = held.batch(part)
    for start, size, record in zip(starts, sizes, held.records[part].tolist(), strict=True):
        assert np.array_equal(block[start : start + size], source.image(record))


def sharded(
    source: FakeSource, hosts: Hosts, plan: StepPlan, num_groups: int, reports: list[ExchangeTimes]
) -> ShardedSet:
    groups = tuple(tuple(part.tolist()) for part in np.array_split(np.arange(plan.world_size), num_groups))
    return ShardedSet(source, hosts, plan, SEED, groups, report=reports.append, segment_bytes=SEGMENT_BYTES)


def in_order(world: World, plan: StepPlan, own: np.ndarray, first_step: int = 0) -> np.ndarray:
    """The visits of all ranks, in the order of positions."""
    by_rank: Sequence[np.ndarray] = world.comm.allgather(own)
    edges = [
        plan.visits(rank).edges() - plan.visits(rank).edges()[first_step] for rank in range(plan.world_size)
    ]
    return np.concatenate(
        [
            by_rank[rank][edges[rank][step] : edges[rank][step + 1]]
            for step in range(first_step, plan.num_steps)
            for rank in range(plan.world_size)
        ]
    )


@pytest.mark.parametrize("last_batch", ["keep", "drop"])
def test_every_epoch_is_the_permutation_that_one_rank_would_take(world: World, last_batch: str) -> None:
    source = FakeSource(1003, 200_000)
    plan = StepPlan(1003, world.world_size, 40 // world.world_size, last_batch)
    hosts = find_hosts(world)
    for num_groups in sorted({1, (world.world_size + 1) // 2}):
        reports: list[ExchangeTimes] = []
        source.num_read = 0
        memory = sharded(source, hosts, plan, num_groups, reports)
        for epoch in (2, 3, 4):
            visited = in_order(world, plan, visit(memory, source, plan, world.rank, epoch))
            assert np.array_equal(visited, epoch_order(1003, SEED, epoch)[: len(visited)])
            assert len(visited) > 1003 - plan.global_batch
        assert sum(world.comm.allgather(source.num_read)) == num_groups * 1003  # the disk is read once a copy
        assert [report.epoch for report in reports] == [3, 4]
        memory.close()


@pytest.mark.parametrize("first_step", [1, 6, 11])
def test_going_on_in_mid_epoch_visits_the_rest(world: World, first_step: int) -> None:
    source = FakeSource(400, 3000)
    plan = StepPlan(400, world.world_size, 32 // world.world_size, "keep")
    memory = sharded(source, find_hosts(world), plan, 1, [])
    for epoch, first in ((5, first_step), (6, 0)):
        visited = in_order(world, plan, visit(memory, source, plan, world.rank, epoch, first), first)
        start = int(plan.step_edges()[first])
        assert np.array_equal(visited, epoch_order(400, SEED, epoch)[start:])
    memory.close()


@pytest.mark.parametrize("calls_of_several_threads", [True, False])
def test_epochs_may_come_in_any_order(
    world: World, calls_of_several_threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not calls_of_several_threads:
        monkeypatch.setattr("mpi4py.MPI.Query_thread", lambda: 0)
    source = FakeSource(300, 3000)
    plan = StepPlan(300, world.world_size, 24 // world.world_size, "keep")
    memory = sharded(source, find_hosts(world), plan, 1, [])
    for epoch in (0, 5, 5, 4):
        visited = in_order(world, plan, visit(memory, source, plan, world.rank, epoch))
        assert np.array_equal(visited, epoch_order(300, SEED, epoch))
    memory.close()


@pytest.mark.parametrize("num_passed", [0, 5, 12])
def test_closing_in_mid_epoch_waits_for_nobody(world: World, num_passed: int) -> None:
    source = FakeSource(300, 30_000)
    plan = StepPlan(300, world.world_size, 24 // world.world_size, "keep")
    memory = sharded(source, find_hosts(world), plan, 1, [])
    memory.open(0)
    memory.passed(num_passed)
    memory.close()
    world.comm.Barrier()


def test_memory_stays_near_one_share(world: World) -> None:
    """Pages come as records arrive, and go as they leave."""
    source = FakeSource(4000, 60_000)
    plan = StepPlan(4000, world.world_size, 160 // world.world_size, "keep")
    memory = sharded(source, find_hosts(world), plan, 1, [])
    share = source.sizes.sum() / world.world_size
    held = memory.open(0)
    before = resident_bytes()
    peak = 0
    for step in range(plan.num_steps):
        memory.passed(step + 1)
        wait_for_all_that_may_leave(memory)
        peak = max(peak, resident_bytes() - before)
    del held
    memory.open(1)
    peak = max(peak, resident_bytes() - before)
    memory.close()
    assert peak < 0.5 * share + (4 << 20)


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.parametrize("ranks_per_host", [0, 2])
def test_a_whole_set_lies_once_on_each_host(world: World, ranks_per_host: int) -> None:
    source = FakeSource(1003, 20_000)
    plan = StepPlan(1003, world.world_size, 40 // world.world_size, "keep")
    hosts = find_hosts(world, ranks_per_host)
    memory = WholeSet(source, hosts, plan, SEED)
    for epoch in (0, 1):
        visited = in_order(world, plan, visit(memory, source, plan, world.rank, epoch))
        assert np.array_equal(visited, epoch_order(1003, SEED, epoch))
    held = memory.open(2)
    while held.batch(slice(0, 1))[0] is not held.block:
        time.sleep(0.01)
    read = world.comm.allgather(source.num_read)
    assert [sum(read[rank] for rank in host) for host in hosts.topology.hosts] == [1003] * len(
        hosts.topology.hosts
    )


def test_an_evaluation_is_dealt_over_the_ranks(world: World) -> None:
    source = FakeSource(603, 2000)
    visits = eval_visits(603, world.rank, world.world_size)
    memory = OwnPart(source, find_hosts(world), visits)
    held = memory.open(0)
    check(held, source, slice(None))
    everything = np.concatenate(world.comm.allgather(held.records))
    assert sorted(everything) == list(range(603))
    assert source.num_read == len(held.records)
    assert memory.open(1) is held
