"""Which all-reduce is quickest here: measured over a run's own buffers, agreed on by all ranks, kept for the next run.

Every candidate, the MPI library's own all-reduce among them, sums each buffer a few times, in turns so that all meet the same
disturbances. The time of a turn is that of the slowest rank; the lowest median wins.
"""

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ddltrain.comm.world import World
from ddltrain.errors import CommError

MAX_TURNS = 7
BUDGET_S = 2.0  # for one size; at least one turn is taken
FORMAT = 1

Sum = Callable[[torch.Tensor, str], object]


@dataclass(frozen=True)
class Choice:
    """The quickest algorithm for buffers of one size, and what each candidate took (seconds, median over turns)."""

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
    from mpi4py import MPI

    times: dict[str, list[float]] = {name: [] for name in candidates}
    for name in candidates:  # makes the plans, and touches the memory
        allreduce(buffer, name)
    used_s = 0.0
    for _ in range(MAX_TURNS):
        for name in candidates:
            world.comm.Barrier()
            start_s = time.perf_counter()
            allreduce(buffer, name)
            own_s = time.perf_counter() - start_s
            slowest_s = world.comm.allreduce(own_s, MPI.MAX)
            times[name].append(slowest_s)
            used_s += slowest_s
        if used_s > BUDGET_S:  # the same on all ranks, being made of slowest times
            break
    medians = {name: statistics.median(values) for name, values in times.items()}
    return Choice(buffer.nbytes, in_window, min(medians, key=medians.__getitem__), medians)


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
        lines.append(f"{_size(choice.size_bytes):>16} " + " ".join(cells))
    return lines


def _size(size_bytes: int) -> str:
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
