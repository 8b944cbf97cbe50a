"""The benchmarks on ranks: what they print and write, on buffers so small that it takes no time."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ddltrain.bench.job import Options, run_bench
from ddltrain.bench.overlap import NUM_BUFFERS, run_overlap
from ddltrain.comm.world import World
from ddltrain.errors import CommError

OPTIONS = Options(
    sizes_bytes=[4096, 65536],
    algorithms=["ring", "auto"],
    dtypes=["float32"],
    op="sum",
    num_warmups=1,
    num_rounds=5,
    rate=None,
    num_hosts=None,
    json_file=None,
    plot_file=None,
)


@pytest.fixture
def screen() -> io.StringIO:
    return io.StringIO()


def test_what_is_hidden_is_measured_for_each_algorithm(
    world: World, screen: io.StringIO, tmp_path: Path
) -> None:
    file = tmp_path / "overlap.json"
    run_overlap(replace(OPTIONS, json_file=file), world, Console(file=screen, width=200))
    if world.rank == 0:
        rows = json.loads(file.read_text())
        assert [row["algorithm"] for row in rows] == OPTIONS.algorithms
        for row in rows:
            assert (row["num_buffers"], row["size_bytes"], row["ranks"]) == (
                NUM_BUFFERS,
                65536,
                world.world_size,
            )
            assert min(row["compute_s"], row["comm_s"]) > 0
            assert row["both_s"] > 0
        assert [line.split()[:4] for line in screen.getvalue().splitlines()[2:]] == [
            [name, "4", "x", "64"] for name in OPTIONS.algorithms
        ]
    for name in ("mpi", "ring/bf16"):
        with pytest.raises(CommError, match=f"{name} does not go on by itself"):
            run_overlap(replace(OPTIONS, algorithms=[name]), world, Console(file=screen))


def test_auto_is_held_against_the_best(world: World, screen: io.StringIO, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    status = run_bench(
        replace(OPTIONS, json_file=file), world, Console(file=screen, width=300), lambda: False
    )
    assert status == 0
    if world.rank == 0:
        assert screen.getvalue().count("auto / ring, the quickest single one: ") == 2
        rows = json.loads(file.read_text())
        assert len(rows) == 8
        assert not any(row["errors"] for row in rows)
