"""Batches of images for one rank: taken from memory, decoded ahead by C++ threads into a ring of buffers.

    with train_loader(dataset.splits["train"], sampling, batch_per_rank=64) as loader:
        for epoch in range(10):
            loader.set_epoch(epoch)
            for images, labels in loader:
                ...

It needs neither the trainer nor MPI; on several ranks give it the `World`, and let all ranks iterate alike.
"""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import torch

from ddltrain.comm.world import World
from ddltrain.errors import DataError, DdltrainError
from ddltrain.input.budget import Demand, check_room, choose_groups, free_bytes
from ddltrain.input.decode import BatchDecoder, RecordError, Sampling, Ticket
from ddltrain.input.hosts import Hosts, find_hosts
from ddltrain.input.memory import Held, Memory, OwnPart, Progress, WholeSet
from ddltrain.input.order import EVAL_BATCH_IMAGES, StepPlan, Visits, eval_visits
from ddltrain.input.ring import Ring
from ddltrain.input.sharded import SEGMENT_BYTES, ExchangeTimes, ShardedSet
from ddltrain.input.store import Store

_BATCHES_AHEAD = 2


@dataclass(frozen=True)
class Batch:
    """One rank's images of one step; unpacks as `images, labels`.

    The images stay as they are until the next batch but one is asked for; then their memory is used again. Clone what is to stay longer.

    Attributes:
        images: [n, 3, size, size] of the sampling's output and memory layout, pinned where asked for.
        labels: int64 [n].
        records: int64 [n], their places in the store.
        step_images: images of this step on all ranks.
    """

    images: torch.Tensor
    labels: torch.Tensor
    records: np.ndarray
    step_images: int

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter((self.images, self.labels))


class Loader:
    """An iterable of batches; made by `train_loader` and `eval_loader`. A context manager: leaving it ends its threads.

    Attributes:
        epoch: the epoch that the next iteration visits; it counts on by itself.
    """

    def __init__(
        self,
        store: Store,
        memory: Memory,
        visits: Visits,
        sampling: Sampling,
        ring: Ring,
        seed: int,
        num_threads: int,
    ) -> None:
        self._store, self._memory, self._visits = store, memory, visits
        self._sampling, self._ring, self._seed = sampling, ring, seed
        self._decoder = BatchDecoder(num_threads)
        self._running: Generator[Batch] | None = None
        self.epoch = 0
        self._step = 0  # batches of the epoch that were handed out
        self._first_step = 0

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self._visits)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration visits: its order and its crops. A position loaded in that epoch stays."""
        if epoch != self.epoch:
            self.epoch, self._step, self._first_step = epoch, 0, 0

    def state_dict(self) -> dict[str, int]:
        """The position: the epoch, and how many of its batches were handed out. All else follows from it."""
        return {"epoch": self.epoch, "step": self._step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on at a position, also one of another number of ranks with the same global batch."""
        self.epoch, self._step = state["epoch"], state["step"]
        self._first_step = self._step

    def __iter__(self) -> Generator[Batch]:
        """The batches of the epoch from the loaded position, else from its start. Collective: all ranks take the same number of batches.

        Raises:
            DataError: a record does not decode, or the set cannot be loaded.
        """
        if self._running is not None:
            self._running.close()
        self._running = self._batches()
        return self._running

    def __enter__(self) -> "Loader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running is not None:
            self._running.close()
        # Other ranks may be anywhere when one of them fails; then nothing may wait for them.
        if error is None or (isinstance(error, DdltrainError) and error.on_all_ranks):
            self._memory.close()
        self._decoder.close()

    def _batches(self) -> Generator[Batch]:
        first, self._first_step = self._first_step, 0
        epoch, edges = self.epoch, self._visits.edges().tolist()
        self._step = first
        held = self._memory.open(epoch)
        self._memory.passed(first)
        ahead: deque[tuple[Batch, Ticket]] = deque()
        try:
            for step in range(first, len(self) + _BATCHES_AHEAD):
                if step < len(self):
                    part = slice(edges[step], edges[step + 1])
                    ahead.append(self._submit(held, part, int(self._visits.step_images[step]), epoch))
                if step >= first + _BATCHES_AHEAD:
                    batch, ticket = ahead.popleft()
                    self._finish(batch, ticket)
                    self._step += 1
                    self._memory.passed(self._step)
                    yield batch
                    self._ring.used(batch.images)
        finally:
            for _, ticket in ahead:  # they write into the ring and read from memory
                with suppress(DataError):
                    ticket.wait()
        self.epoch, self._step = epoch + 1, 0

    def _submit(self, held: Held, part: slice, step_images: int, epoch: int) -> tuple[Batch, Ticket]:
        records = held.records[part].astype(np.int64)
        labels = torch.from_numpy(self._store.labels[records].astype(np.int64))
        batch = Batch(self._ring.take(len(records)), labels, records, step_images)
        block, starts, sizes = held.batch(part)
        ticket = self._decoder.submit(
            block, starts, sizes, records, self._sampling, self._seed, epoch, batch.images
        )
        return batch, ticket

    def _finish(self, batch: Batch, ticket: Ticket) -> None:
        try:
            ticket.wait()
        except RecordError as error:
            record = int(batch.records[error.place])
            raise DataError(
                f"record {record} ({self._store[record].name}) does not decode: {error.reason}; prepare the data set again"
            ) from error


def train_loader(
    store: Store,
    sampling: Sampling,
    batch_per_rank: int,
    *,
    world: World | None = None,
    seed: int = 0,
    last_batch: str = "keep",
    accumulate: int = 1,
    global_batch: int = 0,
    groups: int | str = "auto",
    num_threads: int = 0,
    pin: bool = False,
    dealt_bytes: int = 0,
    say: Callable[[str], None] = lambda _: None,
    progress: Progress | None = None,
    report: Callable[[ExchangeTimes], None] | None = None,
    ranks_per_host: int = 0,
    segment_bytes: int = SEGMENT_BYTES,
) -> Loader:
    """Batches to train on: each epoch visits every record once over all ranks, in an order of its own. Collective.

    The order, and each image's crop, follow from (seed, epoch, record), whatever the number of ranks and threads. The images are loaded
    when the first batch is asked for, and then stay in memory: whole on each host, or, where they do not fit, spread over groups of
    hosts that exchange records between epochs.

    Args:
        world: the ranks; None for a program of one rank, which needs no MPI.
        last_batch: "keep" or "drop", see `StepPlan`.
        accumulate: how many parts a batch consists of, each of up to `batch_per_rank` images, see `StepPlan`.
        global_batch: of all ranks together; 0: what they take with `batch_per_rank`.
        groups: how many groups of hosts hold a whole copy each; "auto": as many as fit.
        num_threads: that decode; 0: the cores of this rank.
        pin: give the batches in pinned memory, for a GPU.
        dealt_bytes: of other images that the ranks are going to hold.
        say: told how much memory each way needs.
        progress: told while images are loaded.
        report: told what each exchange took.
        ranks_per_host: if not 0, so many ranks of a host count as a host of their own.
        segment_bytes: what a rank sends at a time, at most about.

    Raises:
        DataError: fewer images than a global batch, or they do not fit in memory.
        RecipeError: more groups than hosts.
    """
    hosts = find_hosts(world, ranks_per_host)
    with hosts.agreed():
        world_size = hosts.topology.world_size
        plan = StepPlan(len(store), world_size, batch_per_rank, last_batch, accumulate, global_batch)
    visits = plan.visits(hosts.rank)
    ring = Ring(_BATCHES_AHEAD, plan.largest_share, sampling, pin)
    demand = Demand(int(store.sizes.sum(dtype=np.int64)), len(store), dealt_bytes, ring.num_bytes)
    free = _free_by_host(hosts)
    with hosts.agreed():
        option, lines = choose_groups(hosts.topology, demand, free, groups)
    for line in lines:
        say(line)
    cores = _own_cores(hosts)
    memory: Memory
    if len(option.groups) == len(hosts.topology.hosts):
        memory = WholeSet(store, hosts, plan, seed, progress)
    else:
        memory = ShardedSet(store, hosts, plan, seed, option.groups, progress, report, segment_bytes)
    return Loader(store, memory, visits, sampling, ring, seed, num_threads or cores)


def eval_loader(
    store: Store,
    sampling: Sampling,
    *,
    world: World | None = None,
    num_threads: int = 0,
    pin: bool = False,
    ranks_per_host: int = 0,
) -> Loader:
    """Batches to evaluate on: each record once over all ranks, in fixed batches that the ranks take in turn. Collective.

    Each rank loads its own records when the first batch is asked for. A rank may have fewer batches than another, or none. For the
    arguments and errors see `train_loader`.
    """
    hosts = find_hosts(world, ranks_per_host)
    visits = eval_visits(len(store), hosts.rank, hosts.topology.world_size)
    ring = Ring(_BATCHES_AHEAD, EVAL_BATCH_IMAGES, sampling, pin)
    own_bytes = int(store.sizes[visits.positions()].sum(dtype=np.int64))
    by_rank = hosts.gather(own_bytes + ring.num_bytes)
    needs = [sum(by_rank[rank] for rank in host) for host in hosts.topology.hosts]
    free = _free_by_host(hosts)
    with hosts.agreed():
        check_room(needs, free)
    cores, memory = _own_cores(hosts), OwnPart(store, hosts, visits)
    return Loader(store, memory, visits, sampling, ring, 0, num_threads or cores)


def _free_by_host(hosts: Hosts) -> list[int]:
    by_rank = hosts.gather(int(free_bytes() * hosts.share))
    return [min(by_rank[rank] for rank in host) for host in hosts.topology.hosts]


def _own_cores(hosts: Hosts) -> int:
    """This rank's share of the host's cores, or those that a launcher has bound it to where they are fewer."""
    own = os.sched_getaffinity(0)
    by_rank = hosts.gather(sum(1 << core for core in own))
    together = 0
    for rank in hosts.own_ranks:
        together |= by_rank[rank]
    return max(1, min(len(own), together.bit_count() // len(hosts.own_ranks)))
