"""Moves records between the ranks of a group in the background of an epoch.

A segment travels when every rank of the group has used it up, in one all-to-all. Each pair of ranks sends one message, which an MPI
datatype gathers from the records' places and scatters to their new ones: nothing is staged, and byte counts stay far below 2^31.
"""

import itertools
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ddltrain.input.placement import Layout, Move, Parcels
from ddltrain.input.region import Region

if TYPE_CHECKING:
    from mpi4py import MPI

_POLL_S = 2e-4  # asleep between looks, so that the cores are left to decoding


class Exchange:
    """One change of placement, in a thread of its own where MPI takes calls of several threads, else inside `finish`.

    All ranks of the group `allow` the same segments before they `finish` or `stop`.
    """

    def __init__(
        self, comm: "MPI.Comm", control: "MPI.Comm", old: Region, held: Layout, plan: Callable[[], Move]
    ) -> None:
        """Args:
        comm, control: of the group; nothing else may use them meanwhile.
        old, held: what the rank has, and how it lies. Given back as it leaves.
        plan: makes the move; called once, in the background.
        """
        from mpi4py import MPI

        self._comm, self._control = comm, control
        self._old, self._held, self._plan = old, held, plan
        self._num_segments = len(held.segment_edges) - 1
        self._allowed = self._started = self._done = 0
        self._limit = self._num_segments
        self._is_held_back = False
        self._error: BaseException | None = None
        self._condition = threading.Condition()
        self._busy_s = self._waited_s = 0.0
        self._result: tuple[Region, Move] | None = None
        self._thread: threading.Thread | None = None
        if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
            self._thread = threading.Thread(target=self._run_in_thread, name="exchange", daemon=True)
            self._thread.start()

    def allow(self, num_segments: int) -> None:
        """Let the first `num_segments` segments travel: this rank needs them no more.

        Raises:
            BaseException: whatever went wrong in the background.
        """
        with self._condition:
            if self._error is not None:
                raise self._error
            if num_segments > self._allowed:
                self._allowed = num_segments
                self._condition.notify_all()

    def wait(self, num_segments: int) -> None:
        """Return once the first `num_segments` segments have travelled, or something went wrong."""
        if self._thread is not None:
            with self._condition:
                self._condition.wait_for(lambda: self._done >= num_segments or self._error is not None)

    def finish(self) -> tuple[Region, Move]:
        """Let all travel, and wait for it. Collective over the group.

        Returns:
            The new region, and how it lies.
        """
        self.allow(self._num_segments)
        start_s = time.perf_counter()
        if self._thread is None:
            self._run()
        else:
            self._thread.join()
        self._waited_s += time.perf_counter() - start_s
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def stop(self) -> None:
        """End early: what no rank has begun stays where it is. Collective over the group."""
        if self._thread is None:
            return
        with self._condition:
            self._is_held_back = True
            started = self._started
        limit = max(self._control.allgather(started))
        with self._condition:
            self._allowed = self._limit = limit
            self._is_held_back = False
            self._condition.notify_all()
        self._thread.join()

    @property
    def times_s(self) -> tuple[float, float]:
        """Seconds in which records travelled, and seconds in which `finish` waited for them."""
        return self._busy_s, self._waited_s

    def _run_in_thread(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - raised again where the rank asks for the outcome
            with self._condition:
                self._error = error
                self._condition.notify_all()

    def _run(self) -> None:
        move = self._plan()
        new = Region(move.layout.num_bytes)
        for segment in range(self._num_segments):
            if not self._may_start(segment):
                return
            start_s = time.perf_counter()
            self._carry(move, new, segment)
            self._busy_s += time.perf_counter() - start_s
            first, last = self._held.segment_edges[segment : segment + 2].tolist()
            self._old.give_back(first, last)
            with self._condition:
                self._done = segment + 1
                self._condition.notify_all()
        self._result = new, move

    def _may_start(self, segment: int) -> bool:
        """Wait until the segment is used up; False where it stays because of `stop`."""
        with self._condition:
            self._condition.wait_for(
                lambda: not self._is_held_back and (segment < self._allowed or segment >= self._limit)
            )
            if segment >= self._limit:
                return False
            self._started = segment + 1
            return True

    def _carry(self, move: Move, new: Region, segment: int) -> None:
        """The all-to-all of one segment."""
        peers = self._comm.size
        out, into = (_datatypes(parcels, segment) for parcels in (move.leaving, move.arriving))
        try:
            request = self._comm.Ialltoallw(
                (self._old.block, ([1] * peers, [0] * peers), out),
                (new.block, ([1] * peers, [0] * peers), into),
            )
            while not request.Test():
                time.sleep(_POLL_S)
        finally:
            for datatype in (*out, *into):
                datatype.Free()


def _datatypes(parcels: Parcels, segment: int) -> "list[MPI.Datatype]":
    """For each peer the places of its records."""
    from mpi4py import MPI

    edges = parcels.edges[segment]
    return [  # lists are taken up ten times quicker than arrays
        MPI.BYTE.Create_hindexed(
            parcels.sizes[first:last].tolist(), parcels.starts[first:last].tolist()
        ).Commit()
        for first, last in itertools.pairwise(edges.tolist())
    ]
