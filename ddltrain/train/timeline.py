"""What each rank did when, for chrome://tracing, Perfetto and the report.

Spans are kept in memory while the run goes on, and written by rank 0 at its end, all ranks on the clock of rank 0. Ranks of one host
share a clock; that of another host is compared at the start and at the end, by the quickest of several messages there and back.
"""

import json
import time
from array import array
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import torch

from ddltrain.comm.world import World
from ddltrain.train.checkpoint import write_whole

if TYPE_CHECKING:
    from mpi4py import MPI

TIMELINE_FILE = "timeline.json"

# Called with a name; what is done inside the context is a span of that name.
Spans = Callable[[str], AbstractContextManager[None]]

# Beyond so many spans a rank keeps no more: they would fill the memory, and no viewer shows them.
MAX_SPANS = 1_000_000

_NUM_MESSAGES = 20
_NOTHING = nullcontext()


def no_spans(name: str) -> AbstractContextManager[None]:
    """Spans that nobody keeps."""
    return _NOTHING


@dataclass(frozen=True)
class Breakdown:
    """Where the time went, as means over the ranks.

    Attributes:
        total_s: from the first span to the end of the last.
        spans_s: seconds by name, largest first; spans inside others are not counted.
    """

    total_s: float
    spans_s: dict[str, float]


class Timeline:
    """Keeps this rank's spans. It is a `Spans`."""

    def __init__(self, world: World, device: torch.device) -> None:
        """Collective. On a GPU a span ends when the device has done its work, which costs some overlap."""
        self._world = world
        self._is_gpu = device.type == "cuda"
        self._names: dict[str, int] = {}
        self._starts, self._ends = array("q"), array("q")
        self._kinds, self._depths = array("H"), array("B")
        self._depth = 0
        self._num_left_out = 0
        self._clock = (time.perf_counter_ns(), _clock_offset_ns(world))

    def __call__(self, name: str) -> AbstractContextManager[None]:
        return _Span(self, self._names.setdefault(name, len(self._names)))

    def enter(self) -> int:
        """A span begins now."""
        self._depth += 1
        return time.perf_counter_ns()

    def leave(self, kind: int, start_ns: int) -> None:
        """The innermost span ends."""
        if self._is_gpu:
            torch.cuda.synchronize()
        self._depth -= 1
        if len(self._starts) == MAX_SPANS:
            self._num_left_out += 1
            return
        self._starts.append(start_ns)
        self._ends.append(time.perf_counter_ns())
        self._kinds.append(kind)
        self._depths.append(self._depth)

    def write(self, file: Path) -> Breakdown:
        """Merge the ranks' spans into one file on rank 0. Collective.

        Returns:
            Where the time went.

        Raises:
            OSError: on rank 0, the file cannot be written; it is then absent, or as it was.
        """
        names = list(self._names)
        starts, ends = self._on_common_clock()
        own_s = dict.fromkeys(names, 0.0)
        for start, end, kind, depth in zip(starts, ends, self._kinds, self._depths, strict=True):
            if depth == 0:
                own_s[names[kind]] += (end - start) / 1e9
        total_s = (max(ends) - min(starts)) / 1e9 if starts else 0.0
        breakdown = _mean(self._world.comm.allgather((total_s, own_s)))
        spans = (names, self._kinds.tolist(), starts, ends, self._num_left_out)
        gathered = self._world.comm.gather(spans)
        hosts = self._world.comm.gather(self._world.host)
        if gathered is not None and hosts is not None:
            write_whole(file, _chrome_trace(gathered, hosts).encode())
        return breakdown

    def _on_common_clock(self) -> tuple[list[int], list[int]]:
        """Starts and ends of this rank's spans on the clock of rank 0. Collective.

        The clocks' difference is taken to grow evenly from the start to now.
        """
        begun_ns, offset = self._clock
        now_offset, now_ns = _clock_offset_ns(self._world), time.perf_counter_ns()
        drift = (now_offset - offset) / max(1, now_ns - begun_ns)
        starts, ends = (
            [t - offset - round(drift * (t - begun_ns)) for t in times]
            for times in (self._starts, self._ends)
        )
        return starts, ends


class _Span:
    """One `with` block."""

    def __init__(self, timeline: Timeline, kind: int) -> None:
        self._timeline, self._kind = timeline, kind

    def __enter__(self) -> None:
        self._start_ns = self._timeline.enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timeline.leave(self._kind, self._start_ns)


def _clock_offset_ns(world: World) -> int:
    """This rank's clock minus that of rank 0; 0 on the host of rank 0. Collective."""
    hosts: list[str] = world.comm.allgather(world.host)
    offset = 0
    for rank, host in enumerate(hosts):
        if host == hosts[0]:
            continue
        if world.rank == 0:
            world.comm.send(_measure_offset(world.comm, rank), rank)
        elif world.rank == rank:
            for _ in range(_NUM_MESSAGES):
                world.comm.recv(source=0)
                world.comm.send(time.perf_counter_ns(), 0)
            offset = world.comm.recv(source=0)
    return offset


def _measure_offset(comm: "MPI.Comm", rank: int) -> int:
    """The clock of `rank` minus that of this rank, from the quickest message there and back."""
    found: list[tuple[int, int]] = []
    for _ in range(_NUM_MESSAGES):
        start_ns = time.perf_counter_ns()
        comm.send(None, rank)
        there_ns: int = comm.recv(source=rank)
        end_ns = time.perf_counter_ns()
        found.append((end_ns - start_ns, there_ns - (start_ns + end_ns) // 2))
    return min(found)[1]


def _mean(of_ranks: list[tuple[float, dict[str, float]]]) -> Breakdown:
    names = dict.fromkeys(name for _, spans_s in of_ranks for name in spans_s)
    count = len(of_ranks)
    spans_s = {name: sum(own.get(name, 0.0) for _, own in of_ranks) / count for name in names}
    ordered = dict(sorted(spans_s.items(), key=lambda item: -item[1]))
    return Breakdown(sum(total_s for total_s, _ in of_ranks) / count, ordered)


def _chrome_trace(
    of_ranks: list[tuple[list[str], list[int], list[int], list[int], int]], hosts: list[str]
) -> str:
    """The JSON that trace viewers read: microseconds from the first span on, one process a rank."""
    first_ns = min((min(starts) for _, _, starts, _, _ in of_ranks if starts), default=0)
    events = []
    for rank, (names, kinds, starts, ends, num_left_out) in enumerate(of_ranks):
        title = f"rank {rank} on {hosts[rank]}"
        if num_left_out:
            title += f" ({num_left_out} later spans left out)"
        common = f'"pid":{rank},"tid":0'
        events.append(f'{{"ph":"M","name":"process_name",{common},"args":{{"name":{json.dumps(title)}}}}}')
        quoted = [json.dumps(name) for name in names]
        events += [
            f'{{"ph":"X","name":{quoted[kind]},{common},"ts":{(start - first_ns) / 1e3:.3f},"dur":{(end - start) / 1e3:.3f}}}'
            for kind, start, end in zip(kinds, starts, ends, strict=True)
        ]
    return '{"displayTimeUnit":"ms","traceEvents":[\n' + ",\n".join(events) + "\n]}\n"
