from pathlib import Path

import pytest
import torch

from ddltrain.comm.engine import Engine
from ddltrain.comm.plans import PLANNERS
from ddltrain.comm.tuning import Choice, load, save, table
from ddltrain.comm.world import World
from ddltrain.errors import CommError


def values(rank: int, count: int) -> torch.Tensor:
    return ((torch.arange(count) * 7 + rank * 13) % 29 - 11).float()


@pytest.fixture(scope="module")
def spread(world: World) -> Engine:
    """Every rank as if on a host of its own."""
    return Engine(world, ranks_per_host=1)


@pytest.fixture(scope="module")
def shared_folder(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all ranks."""
    return Path(world.comm.bcast(str(tmp_path_factory.mktemp("tuning"))))


def test_all_ranks_agree_on_measured_choices_and_use_them(
    world: World, spread: Engine, shared_folder: Path
) -> None:
    buffers = [spread.allocate(bytes).view(torch.float32) for bytes in (4096, 1 << 20)]
    choices = spread.tune(world, buffers, shared_folder / "tuning.json")
    if world.world_size == 1:
        assert choices == []
        return
    assert [choice.size_bytes for choice in choices] == [4096, 1 << 20]
    assert spread.tune(world, buffers, shared_folder / "tuning.json") == choices  # kept
    assert world.comm.allgather(choices) == [choices] * world.world_size
    for choice in choices:
        assert {"mpi", "ring", "multicolor"} <= choice.times_s.keys()
        assert choice.algorithm in choice.times_s
    for buffer, choice in zip(buffers, choices, strict=True):
        assert spread.describe(buffer).startswith(choice.algorithm)
        buffer.copy_(values(world.rank, len(buffer)))
        total = sum(values(rank, len(buffer)) for rank in range(world.world_size))
        assert torch.equal(spread.allreduce_(buffer), total)


def test_choices_are_kept_for_the_next_run(world: World, shared_folder: Path) -> None:
    engine = Engine(world, ranks_per_host=1)
    if world.world_size == 1:
        return
    buffer = engine.allocate(4096).view(torch.float32)
    kept = [Choice(4096, True, "halving_doubling", {"halving_doubling": 1.0})]
    if world.rank == 0:
        save(shared_folder / "kept.json", engine.place(), kept)
        save(shared_folder / "kept.json", "elsewhere", [])
    world.comm.Barrier()
    assert engine.tune(world, [buffer], shared_folder / "kept.json") == kept
    assert engine.describe(buffer).startswith("halving_doubling")


def test_choices_for_a_wire_are_choices_of_their_own(world: World) -> None:
    engine = Engine(world, ranks_per_host=1)
    buffer = engine.allocate(1 << 16).view(torch.float32)
    wide, narrow = engine.tune(world, [buffer]), engine.tune(world, [buffer], wire="bf16")
    if world.world_size > 1:
        assert engine.way_of(buffer).algorithm == wide[0].algorithm
        way = engine.way_of(buffer, "bf16")
        assert way.algorithm == narrow[0].algorithm
        assert way.wire == (None if way.algorithm == "mpi" else "bf16")
        assert engine.place() != engine.place("bf16")


def test_a_way_tells_rounds_and_bytes(world: World) -> None:
    engine = Engine(world, ranks_per_host=1, algorithm="ring")
    size = world.world_size
    way = engine.way_of(torch.zeros(size * 100))
    rounds = 2 * (size - 1)
    assert (way.num_rounds, way.sent_bytes) == (rounds, rounds * 400)
    assert engine.way_of(torch.zeros(size * 100), "bf16").sent_bytes == rounds * 200
    assert way.words() == engine.describe(torch.zeros(size * 100))
    own = Engine(world, ranks_per_host=1, algorithm="mpi").way_of(torch.zeros(8))
    if size > 1:
        assert (own.algorithm, own.num_rounds, own.sent_bytes) == ("mpi", None, None)


def test_one_host_has_nothing_to_choose(world: World, engine: Engine) -> None:
    buffer = engine.allocate(1 << 16).view(torch.float32)
    assert engine.tune(world, [buffer]) == []
    apart = engine.tune(world, [buffer, torch.zeros(1 << 14)])  # private memory has
    assert [choice.in_window for choice in apart] == [False] * (world.world_size > 1)
    assert engine.describe(buffer).startswith("shared_memory" if world.world_size > 1 else "nothing is sent")


@pytest.mark.parametrize("algorithm", [*PLANNERS, "mpi"])
@pytest.mark.parametrize("op", ["sum", "avg", "min", "max"])
def test_a_checked_engine_passes_right_results(world: World, algorithm: str, op: str) -> None:
    engine = Engine(world, check=True)
    tensor = engine.allocate(4 * 1009).view(torch.float32).copy_(values(world.rank, 1009) / 3)
    engine.allreduce_(tensor, op=op, algorithm=algorithm)


def test_a_checked_engine_refuses_wrong_results(world: World) -> None:
    engine = Engine(world, check=True)
    with pytest.raises(CommError, match=r"by ring differs from that of the MPI library by up to 0\.5"):
        engine._runner.compare(torch.full((3,), world.world_size + 0.5), torch.ones(3), "sum", None, "ring")


def test_a_file_that_is_no_tuning_file_is_named(tmp_path: Path) -> None:
    for content in ("", "{}", '{"format": 9, "places": {}}', '{"format": 1, "places": {"here": [{"x": 1}]}}'):
        (tmp_path / "tuning.json").write_text(content)
        with pytest.raises(CommError, match=r"tuning\.json is not a tuning file"):
            load(tmp_path / "tuning.json", "here")
    assert load(tmp_path / "none.json", "here") == []


def test_the_table_marks_the_choice() -> None:
    choice = Choice(25 << 20, True, "ring", {"ring": 0.5, "mpi": 1.25})
    lines = table([choice])
    assert "25 MiB" in lines[1]
    assert "500.000 *" in lines[1]
    assert "1250.000 *" not in lines[1]
    assert table([]) == []
