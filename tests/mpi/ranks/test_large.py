"""Beyond 2^31 bytes: counts and offsets are 64-bit all the way."""

from pathlib import Path

import pytest
import torch

from ddltrain.comm.engine import Engine
from ddltrain.comm.world import World

COUNT = (1 << 30) + (1 << 12) + 3  # bfloat16: 2^31 bytes and some
NEEDED_BYTES = 12 << 30


def free_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


def part_of(rank: int, start: int, count: int) -> torch.Tensor:
    """Elements of what a rank brings: whole numbers that differ by rank and by 2^31-byte page."""
    place = torch.arange(start, start + count)
    return ((place * 3 + place // (1 << 20) + rank * 5) % 61).to(torch.bfloat16)


def test_a_buffer_of_more_than_2_gib(world: World, engine: Engine) -> None:
    if world.world_size != 2:
        pytest.skip("2 ranks have enough to do with it")
    free = world.comm.bcast(free_bytes())
    if free < NEEDED_BYTES:
        pytest.skip(f"it takes {NEEDED_BYTES >> 30} GiB of free memory, here are {free / (1 << 30):.1f}")
    tensor = engine.allocate(2 * COUNT).view(torch.bfloat16)
    places = [0, (1 << 29) - 500, (1 << 30) - 500, COUNT - 1000]
    for algorithm in ("shared_memory", "ring"):
        for place in places:
            tensor[place : place + 1000] = part_of(world.rank, place, 1000)
        engine.allreduce_(tensor, algorithm=algorithm)
        for place in places:
            wanted = part_of(0, place, 1000) + part_of(1, place, 1000)
            assert torch.equal(tensor[place : place + 1000], wanted)
