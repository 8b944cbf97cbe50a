"""Which all-reduce is quickest here: measured over a run's own buffers, agreed on by all ranks, kept for the next run.

Every candidate, the MPI library's own all-reduce among them, sums each buffer some times, in turns so that all meet the same
disturbances; quick ones several times a turn. The time of a turn is that of the slowest rank. What is quick gets many turns. Where turns
take long, those that took twice as long as the best are left out after the first, and those 20 % behind after the third: so the rest gets
the turns that tell close times apart. The lowest median wins.
"""

import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ddltrain.comm.world import World
from ddltrain.errors import CommError

MIN_TURNS, MAX_TURNS = 5, 25
BUDGET_S = 2.0  # for one size; the least number of turns is taken all the same
TURN_S = 5e-3  # of the quickest candidate; what is quicker is repeated
MAX_REPEATS = 50
FREE_S = 0.5  # for one size, before any candidate is left out
LEAD = {0: 2.0, 2: 1.2}  # from which turn on who is left out, by the best turn so far
FORMAT = 1

Sum = Callable[[torch.Tensor, str], object]


@dataclass(frozen=True)
class Choice:
    """The quickest algorithm for buffers of one size, and what each candidate took (seconds, median over its turns)."""

    size_bytes: int
    in_window: bool
    algorithm: str
    times_s: dict[str, float]


def measure(
    world: World, buffer: torch.Tensor, in_window: bool, candidates: Sequence[str], allreduce: Sum
) -> Choice:
    """Time the candidates on one buffer, whose content is lost. Collective: all ranks get the same choice.

    Args:
        allreduce: sums a buffer over all ranks by the algorithm named.
    """
    buffer.zero_()  # sums upon sums must not overflow: some libraries are slow on infinities
    for name in candidates:  # makes the plans, and touches the memory
        allreduce(buffer, name)
    once_s = [_turn_s(world, buffer, name, 1, allreduce) for name in candidates]
    repeats = dict(zip(candidates, repeats_for(once_s), strict=True))
    times: dict[str, list[float]] = {name: [] for name in candidates}
    running, used_s = list(candidates), 0.0
    for turn in range(MAX_TURNS):
        # In another order each time, the same on all ranks: what a candidate takes also depends on the one before it.
        for name in random.Random(turn).sample(running, len(running)):
            time_s = _turn_s(world, buffer, name, repeats[name], allreduce)
            times[name].append(time_s)
            used_s += time_s * repeats[name]
        if used_s > FREE_S:
            running = _within(LEAD[max(start for start in LEAD if start <= turn)], times, running)
        if used_s > BUDGET_S and turn + 1 >= MIN_TURNS:  # the same on all ranks, being made of slowest times
            break
    medians = {name: statistics.median(values) for name, values in times.items()}
    return Choice(buffer.nbytes, in_window, min(running, key=medians.__getitem__), medians)


def _within(factor: float, times: dict[str, list[float]], running: Sequence[str]) -> list[str]:
    """Those whose best turn is not slower than `factor` times the best of all."""
    best_s = min(min(times[name]) for name in running)
    return [name for name in running if min(times[name]) <= factor * best_s]


def _turn_s(world: World, buffer: torch.Tensor, name: str, repeats: int, allreduce: Sum) -> float:
    """Seconds of one all-reduce on the slowest rank."""
    from mpi4py import MPI

    world.comm.Barrier()
    start_s = time.perf_counter()
    for _ in range(repeats):
        allreduce(buffer, name)
    own_s = (time.perf_counter() - start_s) / repeats
    slowest_s: float = world.comm.allreduce(own_s, MPI.MAX)
    return slowest_s


def repeats_for(times_s: Sequence[float]) -> list[int]:
    """How often to call each of some contenders in a turn, from what one call of each took.

    As often as makes a turn of the quickest long enough, and all that may win equally often: of calls in a row each takes less than a call
    alone. Those that are several times slower are called less.
    """
    most = min(MAX_REPEATS, int(TURN_S / min(times_s)))
    return [max(1, min(most, int(4 * TURN_S / time_s))) for time_s in times_s]


def table(choices: Sequence[Choice]) -> list[str]:
    """The measurements as lines for the log: milliseconds, the choice marked."""
    if not choices:
        return []
    names = list(dict.fromkeys(name for choice in choices for name in choice.times_s))
    lines = [f"{'all-reduce, ms':>16} " + " ".join(f"{name:>17}" for name in names)]
    for choice in choices:
        cells = [
            f"{choice.times_s[name] * 1e3:15.3f}{' *' if name == choice.algorithm else '  '}"
            if name in choice.times_s
            else " " * 17
            for name in names
        ]
        lines.append(f"{size_text(choice.size_bytes):>16} " + " ".join(cells))
    return lines


def size_text(size_bytes: int) -> str:
    """Bytes as people read them: 25 MiB, 3.25 KiB, 12 B."""
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.4g} {unit}"
    return f"{size_bytes} B"


def save(file: Path, place: str, choices: Sequence[Choice]) -> None:
    """Keep the choices for a place (see `Engine.place`); those of other places in the file stay.

    Raises:
        CommError: the file cannot be read or written.
    """
    kept = _read(file)
    kept[place] = [asdict(choice) for choice in choices]
    try:
        temporary = file.with_name(file.name + ".tmp")
        temporary.write_text(json.dumps({"format": FORMAT, "places": kept}, indent=1) + "\n")
        temporary.replace(file)
    except OSError as error:
        raise CommError(f"cannot write the tuning file {file}: {error.strerror}") from None


def load(file: Path, place: str) -> list[Choice]:
    """The choices kept for a place; none where the file or the place is missing.

    Raises:
        CommError: the file is no tuning file.
    """
    try:
        return [Choice(**choice) for choice in _read(file).get(place, [])]
    except TypeError:
        raise CommError(
            f"{file} is not a tuning file; delete it, or name another by comm.tuning_file"
        ) from None


def _read(file: Path) -> dict[str, list[dict[str, Any]]]:
    if not file.exists():
        return {}
    try:
        content = json.loads(file.read_text())
        if content["format"] != FORMAT:
            raise KeyError("format")
        places: dict[str, list[dict[str, Any]]] = content["places"]
    except (OSError, ValueError, KeyError, TypeError):
        raise CommError(
            f"{file} is not a tuning file; delete it, or name another by comm.tuning_file"
        ) from None
    return places
