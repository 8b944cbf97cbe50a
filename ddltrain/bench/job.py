"""The benchmark as the ranks run it, from options to the table."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ddltrain.bench import contenders, plot, table
from ddltrain.bench.contenders import BASELINES, DTYPES, Contender
from ddltrain.bench.floors import Place, find_place
from ddltrain.bench.table import Row
from ddltrain.bench.timing import Buffers, cases_of, time_cases
from ddltrain.comm.engine import Engine
from ddltrain.comm.tuning import table as table_of_choices
from ddltrain.comm.world import World, agreed
from ddltrain.errors import CommError

if TYPE_CHECKING:
    from rich.console import Console

    from ddltrain.train.stop import StopRequest

MIN_ROUNDS = 5


@dataclass(frozen=True)
class Options:
    """What to measure; see the command's help."""

    sizes_bytes: list[int]
    algorithms: list[str]
    dtypes: list[str]
    op: str
    num_warmups: int
    num_rounds: int
    rate: str | None
    num_hosts: int | None
    json_file: Path | None
    plot_file: Path | None


def run_bench(options: Options, world: World, console: "Console", should_stop: "StopRequest") -> int:
    """Measure, print the lines of a size as soon as it is done, and write the files.

    Collective. A signal ends it after the size at hand, with what was measured.

    Returns:
        0, or 1 if an element of any result was wrong.
    """
    torch.set_num_threads(1)
    with agreed(world):
        check_options(options)
    place = find_place(world, options.rate, options.num_hosts, os.environ)
    engine = Engine(world) if set(options.algorithms) - set(BASELINES) else None
    rivals = [_contender(name, world, place, engine) for name in options.algorithms]
    largest_bytes = max(options.sizes_bytes)
    own = Buffers(*(torch.zeros(largest_bytes, dtype=torch.uint8) for _ in range(2)))
    shared = Buffers(*(engine.allocate(largest_bytes) for _ in range(2))) if engine else own

    def say(text: str) -> None:
        if world.rank == 0:
            console.print(text, soft_wrap=True, markup=False)

    say(f"{place.description}; floor: {place.describe_floor()}")
    if engine and "auto" in options.algorithms:
        buffers = [shared.target[: size // 4 * 4].view(torch.float32) for size in options.sizes_bytes]
        for line in table_of_choices(engine.tune(world, buffers)):
            say(line)
    say(f"medians of {options.num_rounds} rounds of the slowest rank\n{table.header()}")
    rows: list[Row] = []
    for size_bytes in options.sizes_bytes:
        for dtype in options.dtypes:
            rows += (fresh := _measure(options, world, place, rivals, own, shared, size_bytes, dtype))
            say(
                "\n".join(table.lines(fresh))
                or f"{size_bytes} B of {dtype}: no algorithm offers {options.op}"
            )
            if verdict := table.auto_against_best(fresh):
                say(verdict)
        if world.comm.bcast(should_stop()):
            break
    _close(options.algorithms)
    if world.rank == 0:
        _write(options, rows)
    return int(any(row.errors for row in rows))


def check_options(options: Options) -> None:
    """Checks what a user may get wrong.

    Raises:
        CommError: a value out of its range, or a file that cannot be written.
    """
    if options.num_rounds < MIN_ROUNDS or options.num_warmups < 1:
        raise CommError(f"-n takes {MIN_ROUNDS} or more (medians of fewer say little) and -w 1 or more")
    if unknown := [name for name in options.dtypes if name not in DTYPES]:
        raise CommError(f"--dtypes: no dtype {', '.join(unknown)}; there are {', '.join(DTYPES)}")
    largest_bytes = max(DTYPES[name].itemsize for name in options.dtypes)
    if min(options.sizes_bytes) < largest_bytes:
        raise CommError(
            f"-b {min(options.sizes_bytes)}: begin with {largest_bytes} bytes or more, one element"
        )
    if options.plot_file and options.plot_file.suffix != ".svg":
        raise CommError(f"--plot {options.plot_file}: drawings are SVG; let the name end in .svg")
    for file in (options.json_file, options.plot_file):
        if file and not file.resolve().parent.is_dir():
            raise CommError(f"{file}: its folder does not exist; make it first")


def _contender(name: str, world: World, place: Place, engine: Engine | None) -> Contender:
    if name == "mpi":
        return contenders.mpi(world)
    if name == "gloo":
        return contenders.gloo(world, place.num_hosts)
    assert engine is not None
    return contenders.own(engine, name)


def _close(algorithms: list[str]) -> None:
    if "gloo" in algorithms:
        dist.destroy_process_group()


def _measure(
    options: Options,
    world: World,
    place: Place,
    rivals: list[Contender],
    own: Buffers,
    shared: Buffers,
    size_bytes: int,
    dtype_name: str,
) -> list[Row]:
    dtype = DTYPES[dtype_name]
    count = size_bytes // dtype.itemsize
    size_bytes = count * dtype.itemsize
    cases = cases_of(rivals, count, dtype, options.op, own, shared)
    return [
        Row(
            place=place.description,
            algorithm=one.contender.name,
            ranks=world.world_size,
            dtype=dtype_name,
            op=options.op,
            in_place=one.in_place,
            size_bytes=size_bytes,
            time_s=one.time_s,
            floor_s=place.floor_s(one.contender.wire_bytes(size_bytes, dtype)),
            errors=one.errors,
        )
        for one in time_cases(world, cases, options.op, options.num_warmups, options.num_rounds)
    ]


def _write(options: Options, rows: list[Row]) -> None:
    if options.json_file:
        options.json_file.write_text(json.dumps(table.as_json(rows), indent=1) + "\n")
    if options.plot_file and rows:
        options.plot_file.write_text(plot.draw(rows))
