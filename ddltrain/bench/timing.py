"""Times contenders in turn, round by round, so that a busy moment of the machine hits all of them."""

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ddltrain.bench.contenders import Call, Contender
from ddltrain.comm.tuning import repeats_for
from ddltrain.comm.world import World

# The inputs repeat after a prime number of elements, so that no two chunks of a power of two look alike.
_PERIOD = 8191
_NUM_VALUES = 4  # 0 to 3: sums of 85 ranks are exact in bfloat16


@dataclass(frozen=True)
class Case:
    """A contender, in or out of place, ready to be timed."""

    contender: Contender
    in_place: bool
    call: Call
    buffers: "Buffers"

    @property
    def source(self) -> torch.Tensor:
        return self.buffers.target if self.in_place else self.buffers.source

    @property
    def target(self) -> torch.Tensor:
        return self.buffers.target

    def run(self) -> None:
        """One all-reduce."""
        self.call(self.source, self.target)


@dataclass(frozen=True)
class Timed:
    """What came out for a case: the median over rounds of the slowest rank's time, and the elements that were wrong on any rank."""

    contender: Contender
    in_place: bool
    time_s: float
    errors: int


@dataclass(frozen=True)
class Buffers:
    """Memory that contenders use in turn, flat and of equal size."""

    source: torch.Tensor
    target: torch.Tensor

    def view(self, count: int, dtype: torch.dtype) -> "Buffers":
        """The first `count` elements as `dtype`; the tensors themselves are bytes."""
        size_bytes = count * dtype.itemsize
        return Buffers(self.source[:size_bytes].view(dtype), self.target[:size_bytes].view(dtype))


def cases_of(
    contenders: list[Contender],
    count: int,
    dtype: torch.dtype,
    op: str,
    own: Buffers,
    shared: Buffers,
) -> list[Case]:
    """Sets up all contenders that offer the operation, out of place and in place.

    Collective.

    Args:
        own: bytes that belong to this rank alone.
        shared: bytes that all ranks of the host can reach, for those who make use of it.
    """
    calls = [(contender, contender.setup(count, dtype, op)) for contender in contenders]
    return [
        Case(contender, in_place, call, (shared if contender.in_window else own).view(count, dtype))
        for contender, call in calls
        if call
        for in_place in (False, True)
    ]


def time_cases(world: World, cases: list[Case], op: str, num_warmups: int, num_rounds: int) -> list[Timed]:
    """Check, warm up and time cases.

    Collective.

    Args:
        num_warmups: calls of each case before it counts, beside one that is checked.
        num_rounds: rounds, in each of which every case is timed once.
    """
    errors = [_check(world, case, op) for case in cases]
    for case in cases:  # so that sums upon sums do not overflow
        case.source.zero_()
        case.target.zero_()
    repeats = repeats_for([_once_s(world, case, num_warmups) for case in cases])
    times_s = torch.zeros(num_rounds, len(cases), dtype=torch.float64)
    for number in range(num_rounds):
        # Drawn anew, the same on all ranks: some leave a machine busy, and nobody is always the one behind them.
        for index in random.Random(number).sample(range(len(cases)), len(cases)):
            times_s[number, index] = _time(world, cases[index], repeats[index])
    from mpi4py import MPI

    world.comm.Allreduce(MPI.IN_PLACE, times_s.numpy(), MPI.MAX)
    return [
        Timed(
            case.contender,
            case.in_place,
            statistics.median(times_s[:, index].tolist()),
            errors[index] + _check(world, case, op),
        )
        for index, case in enumerate(cases)
    ]


def inputs(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """What `rank` brings: small whole numbers that depend on rank and position."""
    return _tiled(_pattern(rank), count, dtype)


def expected(world_size: int, count: int, dtype: torch.dtype, op: str) -> torch.Tensor:
    """What every rank should get."""
    patterns = torch.stack([_pattern(rank) for rank in range(world_size)]).to(torch.float64)
    combine: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "sum": lambda values: values.sum(0),
        "avg": lambda values: values.mean(0),
        "min": lambda values: values.amin(0),
        "max": lambda values: values.amax(0),
    }
    return _tiled(combine[op](patterns), count, dtype)


def count_wrong(result: torch.Tensor, wanted: torch.Tensor, wire: torch.dtype | None = None) -> int:
    """The number of elements that are not what they should be; floating point may be off by the rounding of its dtype or `wire`."""
    if result.dtype.is_floating_point:
        tolerance = 4 * torch.finfo(wire or result.dtype).eps
        return int((~torch.isclose(result, wanted, rtol=tolerance, atol=0)).sum())
    return int((result != wanted).sum())


def _pattern(rank: int) -> torch.Tensor:
    positions = torch.arange(_PERIOD)
    return (positions + (rank + 1) * (positions % 5)) % _NUM_VALUES


def _tiled(pattern: torch.Tensor, count: int, dtype: torch.dtype) -> torch.Tensor:
    return pattern.to(dtype).repeat(-(-count // _PERIOD))[:count]


def _check(world: World, case: Case, op: str) -> int:
    fresh = inputs(world.rank, case.target.numel(), case.target.dtype)
    case.source.copy_(fresh)
    case.run()
    wanted = expected(world.world_size, case.target.numel(), case.target.dtype, op)
    wrong = count_wrong(case.target, wanted, case.contender.wire)
    if not case.in_place:
        wrong += count_wrong(case.source, fresh)  # out of place leaves the input alone
    total: int = world.comm.allreduce(wrong)
    return total


def _once_s(world: World, case: Case, num_warmups: int) -> float:
    """Seconds of one call, after warming up, on the slowest rank."""
    slowest_s: float = max(world.comm.allgather(min(_time(world, case, 1) for _ in range(num_warmups))))
    return slowest_s


def _time(world: World, case: Case, repeats: int) -> float:
    """Seconds of one call on this rank."""
    world.comm.Barrier()
    start_s = time.perf_counter()
    for _ in range(repeats):
        case.run()
    return (time.perf_counter() - start_s) / repeats
