"""Gradients summed inside a host by torch.distributed, where they are, and between hosts by our engine.

    host 0               host 1               a thread of each rank goes through the buckets, in their order
    0  1                 2  3
    └──┴─ reduce-scatter └──┴─ reduce-scatter      NCCL on GPUs, Gloo on CPUs: rank i of a host has part i of the host's sum
    part 0:  0 ◄────────► 2                        our engine: a ring of the i-th ranks of all hosts; from GPUs by pinned memory
    part 1:  1 ◄────────► 3
    ┌──┬─ all-gather     ┌──┬─ all-gather          all ranks have the same bits

On one host it is one all-reduce. While a bucket is between hosts, the one before it is gathered and the next one scattered. What a
rank does in which order follows from the buckets alone, so that it is the same on all ranks of a host.
"""

import queue
import re
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from ddltrain.comm.collectives import ACROSS
from ddltrain.comm.engine import Engine
from ddltrain.comm.handle import Handle
from ddltrain.comm.local_group import LocalGroup, Work
from ddltrain.comm.waits import waiting
from ddltrain.comm.way import Way
from ddltrain.errors import CommError

# What it is at has a time limit of its own; a program that has failed is not to wait for that.
_END_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Memory:
    """A bucket that ranks of a host sum: float32.

    Attributes:
        whole: on the device; a multiple of the ranks of a host.
        part: a rank's part of it, on the device.
        sent: the same in memory that travels between hosts.
        residual: for error feedback, what was rounded away of `sent`; or None.
    """

    whole: torch.Tensor
    part: torch.Tensor
    sent: torch.Tensor
    residual: torch.Tensor | None


@dataclass
class _Task:
    """A bucket under way."""

    memory: Memory
    wire: str | None
    name: str
    filled: "torch.cuda.Event | None"
    between: Handle | None = None
    inside: Work | None = None
    summed: "torch.cuda.Event | None" = None
    is_done: threading.Event = field(default_factory=threading.Event)


class LocalSums:
    """Sums buckets, one after the other, beside what else the rank does."""

    def __init__(self, engine: Engine, device: torch.device, timeout_s: float) -> None:
        """Collective. The engine may do nothing else while a bucket is under way.

        Args:
            timeout_s: how long a rank may wait for others of its host.
        """
        self._device = device
        self._worker = _Worker(engine, device, timeout_s)
        self._hosts = len(engine.topology.hosts)
        self._is_flushed = True
        thread = threading.Thread(target=self._worker.run, name="local sums", daemon=True)
        thread.start()
        # It must not be at work any more when the interpreter ends.
        weakref.finalize(self, _end_worker, self._worker.tasks, thread)

    def memory(self, count: int, keeps_residual: bool = False) -> Memory:
        """Zeroed memory for a bucket of so many elements."""
        size = self._worker.group.size
        length = -(-count // size)
        whole, part = (torch.zeros(number, device=self._device) for number in (size * length, length))
        sent = part if part.is_cpu else torch.zeros(length, pin_memory=True)
        return Memory(whole, part, sent, torch.zeros(length) if keeps_residual else None)

    def submit(self, memory: Memory, wire: str | None, name: str) -> Handle:
        """Begin to sum a bucket once the work in the current stream has filled it. Collective.

        All ranks submit and wait in the same order.
        """
        task = _Task(memory, wire, name, self._mark())
        self._worker.clock.begin()
        self._worker.tasks.put(task)
        self._is_flushed = False
        return Handle(lambda: self._wait(task), task.is_done.is_set, memory.whole)

    @property
    def busy_s(self) -> float:
        """The time so far, in seconds, with a bucket under way."""
        return self._worker.clock.busy_s

    def way(self, memory: Memory, wire: str | None) -> Way:
        """How a bucket is summed."""
        group = self._worker.group
        inside = f"{group.backend} on the {group.size} ranks of a host"
        if self._hosts == 1:
            return Way("local", inside, False, None, None)
        rounds, length = 2 * (self._hosts - 1), memory.sent.numel()
        sent_bytes = rounds * -(-length // self._hosts) * (2 if wire else 4)
        return Way("local", f"{inside}, ring of {self._hosts} hosts", False, rounds, sent_bytes, wire)

    def _wait(self, task: _Task) -> None:
        if not self._is_flushed:
            self._worker.tasks.put("flush")
            self._is_flushed = True
        task.is_done.wait()
        if self._worker.error is not None:
            raise self._worker.error
        if task.summed is not None:
            torch.cuda.current_stream(self._device).wait_event(task.summed)

    def _mark(self) -> "torch.cuda.Event | None":
        return torch.cuda.current_stream(self._device).record_event() if self._device.type == "cuda" else None


def _end_worker(tasks: "queue.SimpleQueue[_Task | str]", thread: threading.Thread) -> None:
    tasks.put("end")
    thread.join(_END_TIMEOUT_S)


class _Clock:
    """The time with something under way; several threads use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_under_way = 0
        self._since_s = self._before_s = 0.0

    def begin(self) -> None:
        with self._lock:
            if not self._num_under_way:
                self._since_s = time.perf_counter()
            self._num_under_way += 1

    def end(self) -> None:
        with self._lock:
            self._num_under_way -= 1
            if not self._num_under_way:
                self._before_s += time.perf_counter() - self._since_s

    @property
    def busy_s(self) -> float:
        with self._lock:
            return self._before_s + (time.perf_counter() - self._since_s if self._num_under_way else 0.0)


class _Worker:
    """The thread's side.

    Attributes:
        tasks: what to do: buckets, "flush" behind the last one of a step, "end".
        error: what has ended it.
        clock: while a bucket is under way.
    """

    def __init__(self, engine: Engine, device: torch.device, timeout_s: float) -> None:
        self.group = LocalGroup(engine, device, timeout_s)
        self.tasks: queue.SimpleQueue[_Task | str] = queue.SimpleQueue()
        self.error: BaseException | None = None
        self.clock = _Clock()
        self._engine, self._device = engine, device
        self._is_one_host = len(engine.topology.hosts) == 1
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def run(self) -> None:
        """Go through the tasks: begin one, then end the one before it."""
        before: _Task | None = None
        while (task := self.tasks.get()) != "end":
            own = task if isinstance(task, _Task) else None
            try:
                if self.error is None:
                    with self._on_stream():
                        if own is not None:
                            self._begin(own)
                        if before is not None:
                            self._end(before)
            except BaseException as error:  # noqa: BLE001  # the rank's own thread raises it
                self.error = error
            ended = [before] if self.error is None else [before, own]
            for one in ended:
                if one is not None:
                    self.clock.end()
                    one.is_done.set()
            before = own if self.error is None else None

    def _begin(self, task: _Task) -> None:
        memory = task.memory
        if task.filled is not None and self._stream is not None:
            self._stream.wait_event(task.filled)
        if self._is_one_host:
            task.inside = self.group.all_reduce(memory.whole)
            return
        self._finish(
            task, lambda: self.group.reduce_scatter(memory.whole, memory.part), memory.part, memory.sent
        )
        task.between = self._engine.allreduce_async(
            memory.sent, wire=task.wire, algorithm=ACROSS, name=task.name, residual=memory.residual
        )

    def _end(self, task: _Task) -> None:
        memory = task.memory
        if task.inside is not None:
            work = task.inside
            self._finish(task, lambda: work)
        elif task.between is not None:
            task.between.wait()
            if memory.sent is not memory.part:
                memory.part.copy_(memory.sent, non_blocking=True)
            self._finish(task, lambda: self.group.all_gather(memory.part, memory.whole))
        if self._stream is not None:
            task.summed = self._stream.record_event()

    def _finish(
        self,
        task: _Task,
        begin: Callable[[], Work],
        source: torch.Tensor | None = None,
        target: torch.Tensor | None = None,
    ) -> None:
        """Wait for an operation of the group, and for a copy of its result from `source` to `target`.

        Raises:
            CommError: it takes too long, or has lost a rank.
        """
        what = f"'{task.name}' inside the host"
        with waiting(what, self.group.missing):
            try:
                begin().wait()
                if source is not None and target is not None and source is not target:
                    target.copy_(source, non_blocking=True)
                if self._stream is not None:
                    self._stream.synchronize()
            except RuntimeError as error:
                # Without the line of its source, and its advice.
                reason = re.sub(r"^\[\S+\] ", "", str(error).splitlines()[0]).partition(". ")[0]
                raise CommError(
                    f"[rank {self._engine.rank}] {what} waits for {self.group.missing()}: {reason}"
                ) from error

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def obstacle(engine: Engine, device: torch.device) -> str:
    """Why the ranks of a host cannot sum by torch.distributed; "" where they can. The same on all ranks with like devices."""
    sizes = {len(host) for host in engine.topology.hosts}
    if len(sizes) > 1:
        return "hosts have unequal numbers of ranks"
    if sizes == {1}:
        return "each host has one rank"
    if not engine.has_background:
        return "the MPI library does not take calls of several threads"
    has_backend = dist.is_available() and (
        dist.is_nccl_available() if device.type == "cuda" else dist.is_gloo_available()
    )
    return "" if has_backend else "this torch is built without it"
