import resource

import pytest
import torch

from ddltrain.comm.engine import Engine
from ddltrain.comm.world import World

DTYPES = [torch.float32, torch.float64, torch.int32, torch.int64]


def values(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Small integers that depend on rank and index: exact in every dtype, and a swapped chunk shows."""
    return ((torch.arange(count) * 7 + rank * 13) % 101).to(dtype)


def expected_sum(world_size: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    return sum(values(rank, count, torch.float64) for rank in range(world_size)).to(dtype)  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_sums_of_about_as_many_elements_as_ranks(engine: Engine, dtype: torch.dtype, extra: int) -> None:
    count = engine.world_size + extra
    result = engine.allreduce_(values(engine.rank, count, dtype))
    assert torch.equal(result, expected_sum(engine.world_size, count, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [0, 1, 1009, (1 << 20) + 3])
def test_sums_of_few_and_many_elements(engine: Engine, dtype: torch.dtype, count: int) -> None:
    tensor = values(engine.rank, count, dtype)
    assert engine.allreduce_(tensor) is tensor
    assert torch.equal(tensor, expected_sum(engine.world_size, count, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_long_tensors_travel_in_pieces(world: World, dtype: torch.dtype) -> None:
    engine = Engine(world, max_message_bytes=44)  # no multiple of 8
    for count in (10, 11, 12, 1009):
        result = engine.allreduce_(values(engine.rank, count, dtype))
        assert torch.equal(result, expected_sum(engine.world_size, count, dtype))
        sent = engine.broadcast_(values(engine.rank, count, dtype), root=engine.world_size - 1)
        assert torch.equal(sent, values(engine.world_size - 1, count, dtype))


def test_a_slice_of_a_tensor_is_summed_and_its_surroundings_are_not(engine: Engine) -> None:
    whole = values(engine.rank, 100, torch.float32)
    engine.allreduce_(whole[31:77])
    assert torch.equal(whole[31:77], expected_sum(engine.world_size, 100, torch.float32)[31:77])
    own = values(engine.rank, 100, torch.float32)
    assert torch.equal(whole[:31], own[:31])
    assert torch.equal(whole[77:], own[77:])


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(4, 4).t(),
        torch.zeros(8)[::2],
        torch.zeros(3, dtype=torch.uint8),
        torch.zeros(3, dtype=torch.bool),
    ],
)
def test_what_cannot_be_summed_is_a_type_error_on_all_ranks(engine: Engine, tensor: torch.Tensor) -> None:
    with pytest.raises(TypeError, match=r"allreduce_ takes a contiguous tensor of .* call \.contiguous\(\)"):
        engine.allreduce_(tensor)


def test_broadcast_takes_any_dtype_and_layout(engine: Engine) -> None:
    for tensor in (
        torch.full((2, 3, 4, 5), float(engine.rank)).to(memory_format=torch.channels_last),
        torch.full((5,), engine.rank, dtype=torch.int64)[::2],
        torch.tensor(engine.rank, dtype=torch.uint8),
        torch.full((7,), engine.rank, dtype=torch.bfloat16),
    ):
        strides = tensor.stride()
        engine.broadcast_(tensor)
        assert tensor.eq(0).all()
        assert tensor.stride() == strides


def test_broadcast_of_a_parameter(engine: Engine) -> None:
    parameter = torch.nn.Parameter(torch.full((3, 3), float(engine.rank)))
    engine.broadcast_(parameter)
    assert parameter.eq(0).all()


def test_bytes_of_rank_0_reach_all(engine: Engine, world: World) -> None:
    assert engine.broadcast_bytes(b"abc" if engine.rank == 0 else None, world) == b"abc"
    assert engine.broadcast_bytes(None if engine.rank == 0 else b"x", world) is None
    engine.barrier()


def test_without_room_for_a_window_memory_is_private_and_sums_are_right(engine: Engine) -> None:
    count = 1 << 21
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limit[1]))
    try:
        memory = engine.allocate(4 * count)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    tensor = memory.view(torch.float32)
    assert not tensor.any()
    assert "private memory" in engine.describe(tensor) or engine.world_size == 1
    engine.allreduce_(tensor.copy_(values(engine.rank, count, torch.float32)))
    assert torch.equal(tensor, expected_sum(engine.world_size, count, torch.float32))
