"""Tells when this rank has waited long for others, while it still waits; and ends the job where nothing else would."""

import os
import sys
import threading

from ddltrain.comm.engine import Engine
from ddltrain.comm.report import LAUNCHER_VARIABLE, tell
from ddltrain.comm.waits import oldest_wait
from ddltrain.comm.world import World, fail
from ddltrain.errors import CommError

_LOOK_S = 0.5


class StallWatch:
    """A thread that looks now and then. Use as a context manager.

    Attributes:
        engine: whose operations it watches, once there is one. They end by themselves at their time limit.
    """

    def __init__(self, world: World, report_s: float, timeout_s: float) -> None:
        """Watch from entering the context on.

        Args:
            report_s: a wait of so long is told; then one of twice the time, and so on.
            timeout_s: a wait of so long in the MPI library ends the job.
        """
        self.engine: Engine | None = None
        self._world = world
        self._report_s, self._timeout_s = report_s, timeout_s
        self._next_report_s = report_s
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stall", daemon=True)

    def __enter__(self) -> "StallWatch":
        if self._world.world_size > 1:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()

    def _run(self) -> None:
        while not self._ends.wait(_LOOK_S):
            waited_s, what = self.engine.waiting() if self.engine else (0.0, "")
            in_mpi_s, mpi_what = oldest_wait()
            if in_mpi_s > waited_s:
                waited_s, what = in_mpi_s, mpi_what
            if waited_s < self._report_s:
                self._next_report_s = self._report_s
            elif waited_s >= self._next_report_s:
                self._next_report_s = 2 * waited_s
                self._tell(waited_s, what)
            if in_mpi_s > self._timeout_s and not self._ends.is_set():
                fail(self._world, CommError(f"no progress for {in_mpi_s:.0f} s: {what}"))

    def _tell(self, waited_s: float, what: str) -> None:
        world = self._world
        tell(os.environ, "waits", rank=world.rank, waited_s=waited_s, text=what)
        if LAUNCHER_VARIABLE not in os.environ:
            place = f"[rank {world.rank}/{world.world_size}] on host {world.host}"
            print(f"{place}: no progress for {waited_s:.0f} s: {what}", file=sys.stderr, flush=True)
