"""What each rank did when, for chrome://tracing, Perfetto and the report.

A rank's own spans make one row; each of its buckets has a row more, with the time from when backward handed it over until it was summed.
Spans are kept in memory while the run goes on, and written by rank 0 at its end, all ranks on the clock of rank 0. Ranks of one host
share a clock; that of another host is compared at the start and at the end, by the quickest of several messages there and back.
"""

import json
import time
from array import array
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import TYPE_CHECKING

import torch

from ddltrain.comm.buckets import BUCKET
from ddltrain.comm.world import World
from ddltrain.train.checkpoint import write_whole

if TYPE_CHECKING:
    from mpi4py import MPI

TIMELINE_FILE = "timeline.json"

# Called with a name; what is done inside the context is a span of that name.
Spans = Callable[[str], AbstractContextManager[None]]

# Name, start and end of what was under way beside the rank's own work.
TakeSums = Callable[[], list[tuple[str, int, int]]]

# The span in which a rank waits for the sums.
WAIT = "all-reduce"

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
        spans_s: seconds by name, largest first; spans inside others are not counted, nor those of buckets.
        comm_s: the time with an all-reduce of a bucket under way.
        comm_exposed_s: the part of it behind backward, in which a rank only waited.
    """

    total_s: float
    spans_s: dict[str, float]
    comm_s: float
    comm_exposed_s: float


@dataclass(frozen=True)
class _Row:
    """Spans that a viewer draws in one line: their names by number, those numbers, and starts and ends in nanoseconds."""

    title: str
    names: list[str]
    kinds: list[int]
    starts: list[int]
    ends: list[int]


class Timeline:
    """Keeps this rank's spans. It is a `Spans`."""

    def __init__(self, world: World, device: torch.device, take_sums: TakeSums = list) -> None:
        """Collective. On a GPU a span ends when the device has done its work, which costs some overlap.

        Args:
            take_sums: gives name, start and end of the all-reduces, in nanoseconds of `time.perf_counter_ns`.
        """
        self._take_sums = take_sums
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
        sums = [span for span in self._take_sums() if span[0].startswith(BUCKET)]
        title = f"rank {self._world.rank} on {self._world.host}"
        if self._num_left_out:
            title += f" ({self._num_left_out} later spans left out)"
        to_common = self._common_clock()
        rows = [
            _Row(title, list(self._names), self._kinds.tolist(), list(self._starts), list(self._ends)),
            *_rows_by_name(sums),
        ]
        rows = [
            replace(row, starts=list(map(to_common, row.starts)), ends=list(map(to_common, row.ends)))
            for row in rows
        ]
        breakdown = _mean(self._world.comm.allgather(self._breakdown(sums)))
        gathered = self._world.comm.gather(rows)
        if gathered is not None:
            write_whole(file, _chrome_trace(gathered).encode())
        return breakdown

    def _breakdown(self, sums: list[tuple[str, int, int]]) -> Breakdown:
        """That of this rank."""
        names = list(self._names)
        own_s = dict.fromkeys(names, 0.0)
        for start, end, kind, depth in zip(self._starts, self._ends, self._kinds, self._depths, strict=True):
            if depth == 0:
                own_s[names[kind]] += (end - start) / 1e9
        total_s = (max(self._ends) - min(self._starts)) / 1e9 if self._starts else 0.0
        return Breakdown(total_s, own_s, _union_s(sums), own_s.get(WAIT, 0.0))

    def _common_clock(self) -> Callable[[int], int]:
        """What brings a time of this rank onto the clock of rank 0. Collective.

        The clocks' difference is taken to grow evenly from the start to now.
        """
        begun_ns, offset = self._clock
        now_offset, now_ns = _clock_offset_ns(self._world), time.perf_counter_ns()
        drift = (now_offset - offset) / max(1, now_ns - begun_ns)
        return lambda t: t - offset - round(drift * (t - begun_ns))


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


def _rows_by_name(sums: list[tuple[str, int, int]]) -> list[_Row]:
    """A row for each bucket: several are under way at once."""
    rows = {name: _Row(name, [name], [], [], []) for name, _, _ in sums}
    for name, start, end in sums:
        rows[name].kinds.append(0)
        rows[name].starts.append(start)
        rows[name].ends.append(end)
    return [rows[name] for name in sorted(rows, key=lambda name: (len(name), name))]


def _union_s(sums: list[tuple[str, int, int]]) -> float:
    """How long at least one of them was under way."""
    total = reached = 0
    for _, start, end in sorted(sums, key=lambda span: span[1]):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total / 1e9


def _mean(of_ranks: list[Breakdown]) -> Breakdown:
    names = dict.fromkeys(name for own in of_ranks for name in own.spans_s)
    spans_s = {name: fmean(own.spans_s.get(name, 0.0) for own in of_ranks) for name in names}
    return Breakdown(
        fmean(own.total_s for own in of_ranks),
        dict(sorted(spans_s.items(), key=lambda item: -item[1])),
        fmean(own.comm_s for own in of_ranks),
        fmean(own.comm_exposed_s for own in of_ranks),
    )


def _chrome_trace(of_ranks: list[list[_Row]]) -> str:
    """The JSON that trace viewers read: microseconds from the first span on, one process a rank, one thread a row."""
    first_ns = min((min(row.starts) for rows in of_ranks for row in rows if row.starts), default=0)
    events = []
    for rank, rows in enumerate(of_ranks):
        for number, row in enumerate(rows):
            common = f'"pid":{rank},"tid":{number}'
            kind_of_name = "thread_name" if number else "process_name"
            title = json.dumps(row.title)
            events.append(f'{{"ph":"M","name":"{kind_of_name}",{common},"args":{{"name":{title}}}}}')
            quoted = [json.dumps(name) for name in row.names]
            events += [
                f'{{"ph":"X","name":{quoted[kind]},{common},"ts":{(start - first_ns) / 1e3:.3f},"dur":{(end - start) / 1e3:.3f}}}'
                for kind, start, end in zip(row.kinds, row.starts, row.ends, strict=True)
            ]
    return '{"displayTimeUnit":"ms","traceEvents":[\n' + ",\n".join(events) + "\n]}\n"
