"""How much of the communication hides behind computing: all-reduces begun at once, beside matrix products of one thread.

    compute alone   █████████████                    time saved   compute + comm - both
    comm alone      ░░░░░░░░░░░░░░░                  hidden       of the shorter of compute and comm, the share saved
    both            █████████████▒▒▒▒

As much is computed as takes about the time of the communication. The processor time of the communication is that of `both` less that of
`compute`, on the rank where it is most; what the kernel does outside of processes is not in it.
"""

import json
import os
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ddltrain.bench import contenders
from ddltrain.bench.contenders import OWN
from ddltrain.bench.floors import find_place
from ddltrain.bench.job import Options, check_options
from ddltrain.bench.sizes import format_size
from ddltrain.comm.engine import Engine
from ddltrain.comm.world import World, agreed
from ddltrain.errors import CommError

if TYPE_CHECKING:
    from rich.console import Console

NUM_BUFFERS = 4
_SIDE = 256  # of the matrices, which fit into a core's own cache

# Starts an all-reduce of a tensor; what it returns waits for the end.
Start = Callable[[torch.Tensor], Callable[[], object]]


@dataclass(frozen=True)
class OverlapRow:
    """One figure, as it goes into the JSON file. Times are medians over rounds of the slowest rank's."""

    place: str
    algorithm: str
    ranks: int
    num_buffers: int
    size_bytes: int
    compute_s: float
    comm_s: float
    both_s: float
    hidden: float
    comm_processor_s: float


@dataclass(frozen=True)
class _Round:
    """Seconds, and processor seconds, of the slowest rank."""

    compute_s: tuple[float, float]
    comm_s: tuple[float, float]
    both_s: tuple[float, float]

    @property
    def hidden(self) -> float:
        saved_s = self.compute_s[0] + self.comm_s[0] - self.both_s[0]
        return saved_s / min(self.compute_s[0], self.comm_s[0])


def run_overlap(options: Options, world: World, console: "Console") -> int:
    """Measure with buffers of the largest size, print a line for each algorithm, and write the JSON file. Collective."""
    torch.set_num_threads(1)
    size_bytes = max(options.sizes_bytes)
    with agreed(world):
        check_options(options)
        if unfit := [name for name in options.algorithms if name == "mpi" or "/" in name]:
            raise CommError(
                f"--overlap: {', '.join(unfit)} does not go on by itself; take gloo, {', '.join(OWN)}"
            )
    place = find_place(world, options.rate, options.num_hosts, os.environ)
    engine = Engine(world)
    buffers = [engine.allocate(size_bytes).view(torch.float32) for _ in range(NUM_BUFFERS)]
    if "auto" in options.algorithms:
        engine.tune(world, buffers)

    def say(text: str) -> None:
        if world.rank == 0:
            console.print(text, soft_wrap=True, markup=False, highlight=False)

    say(f"{place.description}\n{_HEADER}")
    rows = []
    for name in options.algorithms:
        start = _starter(name, world, place.num_hosts, engine)
        rounds = _measure(world, buffers, start, options.num_warmups, options.num_rounds)
        rows.append(_row(place.description, name, world.world_size, size_bytes, rounds))
        say(_line(rows[-1]))
    if "gloo" in options.algorithms:
        dist.destroy_process_group()
    if world.rank == 0 and options.json_file:
        options.json_file.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0


def _starter(name: str, world: World, num_hosts: int, engine: Engine) -> Start:
    """How a contender starts. Collective."""
    if name != "gloo":
        return lambda tensor: engine.allreduce_async(tensor, algorithm=name).wait
    contenders.gloo(world, num_hosts)  # connects

    def start(tensor: torch.Tensor) -> Callable[[], object]:
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        return work.wait

    return start


def _measure(
    world: World, buffers: list[torch.Tensor], start: Start, num_warmups: int, num_rounds: int
) -> list[_Round]:
    matrix, product = torch.ones(_SIDE, _SIDE), torch.empty(_SIDE, _SIDE)

    def compute(num_products: int) -> None:
        for _ in range(num_products):
            torch.mm(matrix, matrix, out=product)

    def communicate(between: Callable[[], None]) -> None:
        waits = [start(buffer) for buffer in buffers]
        between()
        for wait in waits:
            wait()

    for buffer in buffers:
        buffer.zero_()
    comm = partial(communicate, lambda: None)
    comm_s = min(_timed(world, comm)[0] for _ in range(num_warmups + 1))
    probe = 200
    num_products = max(
        1, round(probe * comm_s / min(_timed(world, partial(compute, probe))[0] for _ in range(3)))
    )
    computing = partial(compute, num_products)
    both = partial(communicate, computing)
    return [
        _Round(_timed(world, computing), _timed(world, comm), _timed(world, both)) for _ in range(num_rounds)
    ]


def _timed(world: World, work: Callable[[], None]) -> tuple[float, float]:
    """Seconds and processor seconds, each of the rank that takes most."""
    world.comm.Barrier()
    before_s, start_s = _processor_s(), time.perf_counter()
    work()
    own = time.perf_counter() - start_s, _processor_s() - before_s
    slowest, busiest = zip(*world.comm.allgather(own), strict=True)
    return max(slowest), max(busiest)


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _row(place: str, name: str, num_ranks: int, size_bytes: int, rounds: list[_Round]) -> OverlapRow:
    def median(of: Callable[[_Round], float]) -> float:
        return statistics.median(map(of, rounds))

    return OverlapRow(
        place=place,
        algorithm=name,
        ranks=num_ranks,
        num_buffers=NUM_BUFFERS,
        size_bytes=size_bytes,
        compute_s=median(lambda one: one.compute_s[0]),
        comm_s=median(lambda one: one.comm_s[0]),
        both_s=median(lambda one: one.both_s[0]),
        hidden=median(lambda one: one.hidden),
        comm_processor_s=median(lambda one: one.both_s[1] - one.compute_s[1]),
    )


_HEADER = (
    f"{'algorithm':<18}{'buffers':>12}{'compute':>11}{'comm':>11}{'both':>11}{'hidden':>9}{'processor':>12}"
)


def _line(row: OverlapRow) -> str:
    what = f"{row.num_buffers} x {format_size(row.size_bytes)}"
    times = "".join(f"{time_s * 1e3:>8.1f} ms" for time_s in (row.compute_s, row.comm_s, row.both_s))
    return f"{row.algorithm:<18}{what:>12}{times}{row.hidden:>8.0%} {row.comm_processor_s * 1e3:>8.1f} ms"
