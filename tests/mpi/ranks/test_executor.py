"""Every planner through the executor: sizes, dtypes, operations, windows and messages, several operations at once."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from ddltrain.comm.collectives import part_of
from ddltrain.comm.engine import Engine
from ddltrain.comm.plans import PLANNERS, plan
from ddltrain.comm.plans.plan import TAG, Ints, Kind, Plan
from ddltrain.comm.replay import PlanError
from ddltrain.comm.topology import Topology
from ddltrain.comm.world import World
from ddltrain.errors import CommError

DTYPES = [
    torch.float32,
    torch.float64,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
]
MESSAGE_PLANNERS = [name for name in PLANNERS if name != "shared_memory"]
LARGE = (1 << 20) + 3


@pytest.fixture(scope="module")
def tiny(world: World) -> Engine:
    """Segments of 7 float32, so that every plan is deep and every limit is met."""
    return Engine(world, max_message_bytes=30, segment_bytes=1 << 20, timeout_s=60)


@pytest.fixture(scope="module")
def strict(world: World) -> Engine:
    return Engine(world, timeout_s=60)


def values(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers, of which any sum over 8 ranks is exact in every dtype."""
    return ((torch.arange(count) * 7 + rank * 13) % 29 - 11).to(dtype)


def expected(world_size: int, count: int, dtype: torch.dtype, op: str) -> torch.Tensor:
    table = torch.stack([values(rank, count, torch.float64) for rank in range(world_size)])
    reduce: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "sum": lambda table: table.sum(0),
        "avg": lambda table: table.mean(0),
        "min": lambda table: table.amin(0),
        "max": lambda table: table.amax(0),
    }
    return reduce[op](table).to(dtype)


def fill(engine: Engine, count: int, dtype: torch.dtype, in_window: bool) -> torch.Tensor:
    own = values(engine.rank, count, dtype)
    return engine.allocate(own.nbytes).view(dtype).copy_(own) if in_window else own


def same_on_all_ranks(engine: Engine, tensor: torch.Tensor) -> bool:
    return torch.equal(engine.broadcast_(tensor.clone()).view(torch.uint8), tensor.view(torch.uint8))


def counts(world_size: int) -> list[int]:
    return sorted({0, 1, world_size - 1, world_size, world_size + 1, 1009})


@pytest.mark.parametrize("op", ["sum", "avg", "min", "max"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("algorithm", [*PLANNERS, "mpi", "auto"])
def test_every_algorithm_reduces(tiny: Engine, algorithm: str, dtype: torch.dtype, op: str) -> None:
    if op == "avg" and not dtype.is_floating_point:
        return
    for count, in_window in itertools.product(counts(tiny.world_size), (False, True)):
        if algorithm == "shared_memory" and not in_window:
            continue
        tensor = fill(tiny, count, dtype, in_window)
        tiny.allreduce_(tensor, op, algorithm=algorithm)
        wanted = expected(tiny.world_size, count, dtype, op)
        if op == "avg":
            torch.testing.assert_close(tensor, wanted, rtol=0.02, atol=0.2)
        else:
            assert torch.equal(tensor, wanted), (count, in_window)
        assert same_on_all_ranks(tiny, tensor)


@pytest.mark.parametrize("algorithm", PLANNERS)
def test_every_algorithm_reduces_large_buffers_to_the_same_bits(strict: Engine, algorithm: str) -> None:
    tensor = strict.allocate(4 * LARGE).view(torch.float32)
    own = torch.randn(LARGE, generator=torch.Generator().manual_seed(strict.rank))
    first = strict.allreduce_(tensor.copy_(own), algorithm=algorithm).clone()
    oracle = strict.allreduce_(own.double(), algorithm="mpi")
    torch.testing.assert_close(first.double(), oracle, rtol=1e-4, atol=1e-4)
    assert same_on_all_ranks(strict, first)
    assert torch.equal(strict.allreduce_(tensor.copy_(own), algorithm=algorithm), first)


@pytest.mark.parametrize("wire", ["bf16", "fp16"])
@pytest.mark.parametrize("algorithm", MESSAGE_PLANNERS)
def test_16_bits_on_the_wire_end_in_the_same_bits(tiny: Engine, algorithm: str, wire: str) -> None:
    for count in (1, tiny.world_size + 1, 1009):
        own = torch.randn(count, generator=torch.Generator().manual_seed(tiny.rank))
        oracle = tiny.allreduce_(own.double(), algorithm="mpi")
        tiny.allreduce_(own, wire=wire, algorithm=algorithm)
        assert same_on_all_ranks(tiny, own)
        torch.testing.assert_close(own.double(), oracle, rtol=0.05, atol=0.1)
        exact = values(tiny.rank, count, torch.float32)
        tiny.allreduce_(exact, wire=wire, algorithm=algorithm)
        assert torch.equal(exact, expected(tiny.world_size, count, torch.float32, "sum"))


@pytest.mark.parametrize("in_window", [False, True])
def test_averages_of_large_half_floats_do_not_overflow(tiny: Engine, in_window: bool) -> None:
    for algorithm in MESSAGE_PLANNERS:
        tensor = fill(tiny, 1009, torch.float16, in_window).fill_(60000)
        tiny.allreduce_(tensor, "avg", algorithm=algorithm)
        torch.testing.assert_close(tensor, torch.full_like(tensor, 60000), rtol=0.01, atol=0)


@pytest.mark.parametrize("wire", ["bf16", "fp16"])
def test_what_is_finite_arrives_finite(tiny: Engine, wire: str) -> None:
    """Also where a sum, or a part of it, is beyond what 16 bits hold."""
    largest, own = (65504.0, 60000.0) if wire == "fp16" else (3.3895e38, 3.38e38 / tiny.world_size)
    wanted = torch.full((101,), min(largest, own * tiny.world_size))
    for algorithm in MESSAGE_PLANNERS:
        tensor = torch.full((101,), own)
        tiny.allreduce_(tensor, wire=wire, algorithm=algorithm)
        torch.testing.assert_close(tensor, wanted, rtol=0.01, atol=0)
        assert same_on_all_ranks(tiny, tensor)


def test_many_tensors_are_reduced_as_one_by_one(tiny: Engine, strict: Engine) -> None:
    sizes = [3, 0, 1009, 1, 400_000, 17]
    for engine, dtypes in ((tiny, [torch.float32, torch.bfloat16]), (strict, DTYPES)):
        tensors = [values(engine.rank, size, dtype) for size in sizes for dtype in dtypes]
        tensors.append(values(engine.rank, 40, torch.int64).view(4, 10).t())
        engine.allreduce_many_(tensors, "max")
        wanted = [expected(engine.world_size, size, dtype, "max") for size in sizes for dtype in dtypes]
        wanted.append(expected(engine.world_size, 40, torch.int64, "max").view(4, 10).t())
        assert all(map(torch.equal, tensors, wanted))
    arrays = [values(strict.rank, size, torch.float64).numpy() for size in (5, 6)]
    assert strict.allreduce_many_(arrays) is arrays
    assert np.array_equal(arrays[1], expected(strict.world_size, 6, torch.float64, "sum").numpy())
    with pytest.raises(TypeError, match="cannot be averaged"):
        strict.allreduce_many_([torch.zeros(4), torch.zeros(4, dtype=torch.int32)], "avg")


def test_a_verifying_engine_refuses_a_wrong_plan(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(world, ranks_per_host=1, verify=True, timeout_s=60)
    for algorithm in MESSAGE_PLANNERS:
        tensor = engine.allreduce_(values(world.rank, 1009, torch.float32), algorithm=algorithm)
        assert torch.equal(tensor, expected(world.world_size, 1009, torch.float32, "sum"))
    if world.world_size == 1:
        return
    right = PLANNERS["ring"]

    def wrong(topology: Topology, count: int, segment_count: int) -> Plan:
        plan = right(topology, count, segment_count)
        return replace(plan, build=lambda rank: plan.ops_of(rank)[:-2])

    monkeypatch.setitem(PLANNERS, "ring", wrong)
    with pytest.raises(PlanError):
        engine.allreduce_(torch.zeros(2000), algorithm="ring")
    monkeypatch.undo()
    engine.allreduce_(torch.zeros(2000), algorithm="ring")  # nothing was sent


def test_no_plan_has_to_run_ahead(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only the first unfinished row and few behind it may be sent, all still end."""
    monkeypatch.setattr(plan, "MIN_ROWS_AHEAD", 1)
    monkeypatch.setattr(plan, "TICKS_AHEAD", 1)
    engine = Engine(world, ranks_per_host=1, verify=True, max_message_bytes=30, timeout_s=60)
    for algorithm in MESSAGE_PLANNERS:
        tensor = engine.allreduce_(values(world.rank, 1009, torch.float32), algorithm=algorithm)
        assert torch.equal(tensor, expected(world.world_size, 1009, torch.float32, "sum"))


def test_what_would_run_ahead_is_held_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks that list all they receive before all they send wait for each other, unless they may run so far ahead."""
    if world.world_size != 2:
        return
    even = 2 * np.arange(50)

    def build(rank: int) -> Ints:
        receives = plan.rows(Kind.RECV_REDUCE, peer=1 - rank, offset=even + rank, count=1)
        sends = plan.rows(Kind.SEND, peer=1 - rank, offset=even + 1 - rank, count=1)
        receives[:, TAG] = sends[:, TAG] = np.arange(50)
        return np.concatenate([receives, sends])

    def backward(topology: Topology, count: int, segment_count: int) -> Plan:
        return Plan("ring", topology, count, 1, 1, "", build, lambda rank: 50)

    monkeypatch.setitem(PLANNERS, "ring", backward)
    for rows_ahead, ends in ((50, False), (51, True)):
        monkeypatch.setattr(plan, "MIN_ROWS_AHEAD", rows_ahead)
        engine = Engine(world, ranks_per_host=1, timeout_s=60 if ends else 0.3)
        if ends:
            halves = engine.allreduce_(torch.ones(100), algorithm="ring").view(50, 2).mean(0)
            assert halves.tolist() == [2.0 - world.rank, 1.0 + world.rank]
        else:
            with pytest.raises(CommError, match=r"no progress|given up"):
                engine.allreduce_(torch.ones(100), algorithm="ring")


def test_extremes_know_nan_and_the_sign_of_zero(tiny: Engine) -> None:
    last = tiny.world_size - 1
    for algorithm in MESSAGE_PLANNERS:
        own = torch.tensor([0.0, -0.0, 1.0] if tiny.rank == last else [-0.0, 0.0, float("nan")])
        low, high = own.clone(), own.clone()
        tiny.allreduce_(low, "min", algorithm=algorithm)
        tiny.allreduce_(high, "max", algorithm=algorithm)
        if last > 0:
            assert low.signbit().tolist()[:2] == [True, True]
            assert high.signbit().tolist()[:2] == [False, False]
            assert low.isnan().tolist() == high.isnan().tolist() == [False, False, True]


@pytest.mark.parametrize("in_window", [False, True])
def test_many_operations_under_way_at_once(tiny: Engine, in_window: bool) -> None:
    sizes = [1009, 3, 500, 1, 64] * 8  # more than there are slots
    tensors = [fill(tiny, count, torch.float32, in_window) for count in sizes]
    names = list(MESSAGE_PLANNERS)
    handles = [
        tiny.allreduce_async(tensor, algorithm=names[index % len(names)], priority=index % 3)
        for index, tensor in enumerate(tensors)
    ]
    between = tiny.allreduce_(values(tiny.rank, 77, torch.float32), algorithm="ring")
    assert torch.equal(between, expected(tiny.world_size, 77, torch.float32, "sum"))
    for handle, count in reversed(list(zip(handles, sizes, strict=True))):
        result = handle.wait()
        assert handle.test()
        assert torch.equal(result, expected(tiny.world_size, count, torch.float32, "sum"))


def test_an_operation_goes_on_while_nobody_waits(strict: Engine) -> None:
    tensor = values(strict.rank, LARGE, torch.float32)
    handle = strict.allreduce_async(tensor, algorithm="ring")
    while not handle.test():
        pass
    assert torch.equal(tensor, expected(strict.world_size, LARGE, torch.float32, "sum"))


@pytest.mark.parametrize("in_window", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reduce_scatter_and_all_gather_are_the_halves(
    tiny: Engine, dtype: torch.dtype, in_window: bool
) -> None:
    for count in counts(tiny.world_size):
        tensor = fill(tiny, count, dtype, in_window)
        own = part_of(tiny.rank, tiny.world_size, count)
        wanted = expected(tiny.world_size, count, dtype, "sum")
        part = tiny.reduce_scatter(tensor)
        assert torch.equal(part, wanted[own])
        tensor[: own.start] = tensor[own.stop :] = 99
        assert torch.equal(tiny.all_gather(tensor), wanted)


@pytest.mark.parametrize("op", ["sum", "avg", "max"])
@pytest.mark.parametrize("wire", [None, "bf16"])
def test_several_hosts_of_two_ranks_and_a_rest(world: World, wire: str | None, op: str) -> None:
    engine = Engine(world, segment_bytes=28, timeout_s=60, ranks_per_host=2)
    assert [len(host) for host in engine.topology.hosts] == [2] * (world.world_size // 2) + [1] * (
        world.world_size % 2
    )
    for count in (*counts(world.world_size), 5000):
        for algorithm in MESSAGE_PLANNERS:
            tensor = fill(engine, count, torch.float32, in_window=True)
            engine.allreduce_(tensor, op, wire=wire, algorithm=algorithm)
            wanted = expected(world.world_size, count, torch.float32, op)
            if op == "avg":
                torch.testing.assert_close(tensor, wanted, rtol=0.03, atol=0.2)
            else:
                assert torch.equal(tensor, wanted), (count, algorithm)
            assert same_on_all_ranks(engine, tensor)


def test_messages_serve_where_windows_are_off(world: World) -> None:
    engine = Engine(world, use_windows=False, timeout_s=60)
    assert not engine.has_windows
    tensor = engine.allocate(4000).view(torch.float32).copy_(values(world.rank, 1000, torch.float32))
    for algorithm in ("auto", "hierarchical"):
        copy = tensor.clone()
        engine.allreduce_(copy, algorithm=algorithm)
        assert torch.equal(copy, expected(world.world_size, 1000, torch.float32, "sum"))


def test_numpy_arrays_are_reduced_in_place(strict: Engine) -> None:
    array = values(strict.rank, 1009, torch.float64).numpy()
    assert strict.allreduce_(array) is array
    assert np.array_equal(array, expected(strict.world_size, 1009, torch.float64, "sum").numpy())


def test_parts_of_a_window_are_reduced_and_their_surroundings_are_not(strict: Engine) -> None:
    whole = fill(strict, 100, torch.float32, in_window=True)
    strict.allreduce_(whole[31:77])
    own = values(strict.rank, 100, torch.float32)
    wanted = expected(strict.world_size, 100, torch.float32, "sum")
    assert torch.equal(whole, torch.cat([own[:31], wanted[31:77], own[77:]]))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda engine: engine.allreduce_(torch.zeros(4, dtype=torch.int32), "avg"), "cannot be averaged"),
        (lambda engine: engine.allreduce_(torch.zeros(4), "mean"), "must be one of sum, avg, min, max"),
        (lambda engine: engine.allreduce_(torch.zeros(4), wire="int8"), "wire = 'int8'"),
        (lambda engine: engine.allreduce_(torch.zeros(4).double(), wire="bf16"), "only float32 can travel"),
        (lambda engine: engine.allreduce_async(torch.zeros(4, dtype=torch.bool)), "takes a contiguous"),
    ],
)
def test_what_cannot_be_done_is_a_type_error(
    strict: Engine, wrong: Callable[[Engine], object], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        wrong(strict)


def test_an_unknown_algorithm_is_refused(world: World) -> None:
    with pytest.raises(CommError, match="algorithm 'rings' does not exist"):
        Engine(world, algorithm="rings")


def test_shared_memory_needs_a_window(strict: Engine) -> None:
    if strict.world_size > 1:
        with pytest.raises(CommError, match=r"memory from Engine\.allocate"):
            strict.allreduce_(torch.zeros(4), algorithm="shared_memory")


def test_a_rank_that_does_not_come_is_named(world: World) -> None:
    """Every case breaks its engine, and leaves the world as it was."""
    if world.world_size == 1:
        return
    for algorithm, in_window in (("ring", False), ("shared_memory", True)):
        engine = Engine(world, timeout_s=0.3)
        tensor = engine.allocate(400).view(torch.float32) if in_window else torch.zeros(100)
        if world.rank > 0:
            with pytest.raises(CommError, match=r"\[rank .*'grads' \(100 float32\).* waits for rank"):
                engine.allreduce_(tensor, algorithm=algorithm, name="grads")
            with pytest.raises(CommError, match="waits for rank"):  # from now on, at once
                engine.allreduce_(tensor, algorithm=algorithm)
        world.comm.Barrier()


@pytest.mark.parametrize("in_window", [False, True])
def test_ranks_that_disagree_get_no_sums(world: World, in_window: bool) -> None:
    if world.world_size == 1:
        return
    engine = Engine(world, timeout_s=0.3)
    memory = engine.allocate(800) if in_window else torch.zeros(800, dtype=torch.uint8)
    tensor = memory.view(torch.float32)[:100] if world.rank == 0 else memory.view(torch.float64)[:100]
    with pytest.raises(CommError, match=r"with another size, dtype|no progress|given up|sent .* bytes"):
        engine.allreduce_(tensor, algorithm="shared_memory" if in_window else "ring")
    world.comm.Barrier()
