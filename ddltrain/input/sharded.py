"""A training set spread over the hosts of a group, whose ranks exchange records while an epoch runs (see `placement.py`)."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddltrain.input.exchange import Exchange
from ddltrain.input.hosts import Hosts
from ddltrain.input.memory import Held, Progress, Source
from ddltrain.input.order import Ints, StepPlan
from ddltrain.input.placement import (
    Group,
    Layout,
    Move,
    Placement,
    lay_out_disk,
    place_epoch,
    place_on_disk,
    plan_move,
)
from ddltrain.input.region import Region

SEGMENT_BYTES = 64 << 20  # what a rank sends at a time, at most about
MIN_SEGMENTS = 16
_PIECES_AHEAD = 2  # that may wait to be sent while the set is loaded


@dataclass(frozen=True)
class ExchangeTimes:
    """Of the exchange that led to `epoch`: seconds in which records travelled, and in which training waited for them."""

    epoch: int
    busy_s: float
    waited_s: float

    @property
    def hidden(self) -> float:
        """The share of the exchange that training did not wait for, 0 to 1."""
        return max(0.0, 1 - self.waited_s / self.busy_s) if self.busy_s else 1.0


class ShardedSet:
    """This rank's share of a set that a group of ranks holds together. Each method is collective over all ranks."""

    def __init__(
        self,
        source: Source,
        hosts: Hosts,
        plan: StepPlan,
        seed: int,
        groups: tuple[Group, ...],
        progress: Progress | None = None,
        report: Callable[[ExchangeTimes], None] | None = None,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """Collective.

        Args:
            progress: told while the set is loaded.
            report: told what each exchange took.
        """
        assert hosts.world is not None
        self._source, self._plan, self._seed = source, plan, seed
        self._progress, self._report = progress, report
        self._num_local = len(hosts.own_ranks)
        index = next(index for index, group in enumerate(groups) if hosts.rank in group)
        self._group = groups[index]
        self._own = self._group.index(hosts.rank)
        self._comm = hosts.world.comm.Split(index)
        self._control = self._comm.Dup()
        share = int(source.sizes.sum(dtype=np.int64)) // min(map(len, groups))
        self._num_pieces = max(MIN_SEGMENTS, -(-share // segment_bytes))
        self._num_segments = min(plan.num_steps, self._num_pieces)
        self._state: _State | None = None
        self._exchange: Exchange | None = None
        self._next_epoch = 0

    def open(self, epoch: int) -> Held:
        if self._exchange is None:
            self._read(epoch)
        else:
            self._arrive()
            if self._state is not None and self._state.epoch != epoch:  # another one than was to be expected
                self._depart(epoch)
                self._arrive()
        assert self._state is not None
        state = self._state
        self._depart(epoch + 1)
        return Held(
            state.region.block, state.visited, self._source.sizes, lambda part: state.visited_starts[part]
        )

    def passed(self, num_batches: int) -> None:
        assert self._exchange is not None
        # The segment of the next batch is the first that is still needed.
        self._exchange.allow(num_batches * self._num_segments // self._plan.num_steps)

    def close(self) -> None:
        if self._exchange is not None:
            self._exchange.stop()
            self._comm.Free()
            self._control.Free()
            self._exchange = None

    def _depart(self, epoch: int) -> None:
        """Start the exchange that leads to `epoch`."""
        state = self._state
        assert state is not None

        def plan() -> Move:
            old, new = self._place(state.epoch), self._place(epoch)
            return plan_move(old, state.layout, new, self._source.sizes, self._own, len(self._group))

        self._next_epoch = epoch
        self._exchange = Exchange(self._comm, self._control, state.region, state.layout, plan)

    def _arrive(self) -> None:
        """Wait for the exchange that was started."""
        assert self._exchange is not None
        region, move = self._exchange.finish()
        self._state = _state_of(self._next_epoch, region, move)
        if self._report is not None:
            self._report(ExchangeTimes(self._next_epoch, *self._exchange.times_s))

    def _place(self, epoch: int) -> Placement:
        return place_epoch(self._plan, self._group, self._num_segments, self._seed, epoch)

    def _read(self, epoch: int) -> None:
        """Read this rank's part of the disk, and pass it on to where `epoch` wants it."""
        sizes = self._source.sizes
        disk = place_on_disk(sizes, self._group, self._num_pieces)
        layout = lay_out_disk(disk, sizes, self._own)
        region = Region(layout.num_bytes)

        def plan() -> Move:
            return plan_move(disk, layout, self._place(epoch), sizes, self._own, len(self._group))

        exchange = Exchange(self._comm, self._control, region, layout, plan)
        start_s = time.perf_counter()
        edges = np.searchsorted(layout.starts, layout.segment_edges)
        for piece in range(self._num_pieces):
            start, stop = layout.segment_edges[piece : piece + 2].tolist()
            if start < stop:
                first, last = layout.records[edges[piece : piece + 2] - (0, 1)].tolist()
                self._source.read_into(first, last + 1, region.block[start:stop])
                if self._progress is not None:
                    done, total = (self._num_local * count for count in (stop, layout.num_bytes))
                    self._progress(done, total, time.perf_counter() - start_s)
            exchange.allow(piece + 1)
            exchange.wait(piece + 1 - _PIECES_AHEAD)
        self._state = _state_of(epoch, *exchange.finish())


@dataclass(frozen=True)
class _State:
    """What this rank has for an epoch; attributes as in `Move`."""

    epoch: int
    region: Region
    layout: Layout
    visited: NDArray[np.int32]
    visited_starts: Ints


def _state_of(epoch: int, region: Region, move: Move) -> _State:
    return _State(epoch, region, move.layout, move.visited, move.visited_starts)
