"""Watches over an mpiexec: passes signals on, hears what the ranks tell, ends what does not end by itself."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from types import FrameType

from ddltrain.comm.parent import signal_when_parent_dies
from ddltrain.comm.report import Cause, Report
from ddltrain.errors import EXIT_KILLED, EXIT_STOPPED

# After a rank has failed, mpiexec gets so long to end the others; then it is told to, and at last killed.
_END_TIMEOUT_S = 6.0
_KILL_TIMEOUT_S = 3.0
# What outlives mpiexec may hold its output open.
_OUTPUT_TIMEOUT_S = 2.0
_LOOK_S = 0.2
_GATHER_S = 2.0


@dataclass(frozen=True)
class Ending:
    """How a job ended.

    Attributes:
        status: as a shell would give it.
        is_fault: it ended by itself, and not in order.
        cause: of a fault, where a rank told one.
        note: what else a person should know.
    """

    status: int
    is_fault: bool
    cause: Cause | None
    note: str = ""

    def explain(self, loss: str = "") -> None:
        """Print one sentence about it, where there is one.

        Args:
            loss: of hosts, in words; it explains more than what ranks told.
        """
        if self.note:
            print(self.note, file=sys.stderr, flush=True)
        if not self.is_fault:
            return
        told = str(self.cause) if self.cause else ""
        reason = loss and told and f"{loss} ({told})"
        reason = reason or loss or told or f"status {self.status} of mpiexec; no rank told why"
        print(f"error: the job ended because of {reason}", file=sys.stderr, flush=True)


def supervise(command: list[str], environment: dict[str, str]) -> int:
    """Run mpiexec on a program that need not be ours, passing signals on; its exit status as a shell would give it."""
    return Supervisor(command, environment, listens=False).run().status


class Supervisor:
    """Runs an mpiexec."""

    def __init__(self, command: list[str], environment: dict[str, str], listens: bool = True) -> None:
        """Nothing is started yet.

        Args:
            listens: to what the ranks tell; otherwise they are taken to be ready.
        """
        self.report = Report(has_started=not listens)
        self._command = command
        self._environment = environment
        self._listens = listens
        self._num_signals = 0
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> Ending:
        """Start it, and pass signals on until it ends."""
        handled = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
        previous = {number: signal.signal(number, self._stop) for number in handled}
        try:
            # A session of its own, so that a terminal's Ctrl-C reaches us alone: mpiexec would kill the ranks in mid-step.
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE if self._listens else None,
                env=self._environment,
                start_new_session=True,
                preexec_fn=lambda: signal_when_parent_dies(signal.SIGUSR1),  # noqa: PLW1509 - this process has no other thread
            )
            self._process = process
            if self._num_signals:  # they came before it could hear them
                process.terminate()
            reader = threading.Thread(target=self._read, args=[process], daemon=True)
            reader.start()
            status = self._wait_for_end(process)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        reader.join(_OUTPUT_TIMEOUT_S)
        return self._ending(status if status >= 0 else 128 - status)

    def _wait_for_end(self, process: subprocess.Popen[bytes]) -> int:
        failed_s: float | None = None
        stalls_told_s = time.monotonic()
        while True:
            try:
                return process.wait(_LOOK_S)
            except subprocess.TimeoutExpired:
                pass
            if time.monotonic() - stalls_told_s > _GATHER_S:  # the ranks tell at about the same time
                stalls_told_s = time.monotonic()
                for line in self.report.take_stalls():
                    print(line, file=sys.stderr, flush=True)
            if self._listens and self.report.has_failed and failed_s is None:
                failed_s = time.monotonic()
            if failed_s is not None:
                waited_s = time.monotonic() - failed_s
                if waited_s > _END_TIMEOUT_S + _KILL_TIMEOUT_S:
                    process.kill()
                elif waited_s > _END_TIMEOUT_S:
                    process.terminate()

    def _ending(self, status: int) -> Ending:
        report, cause = self.report, self.report.cause()
        if self._num_signals and not report.has_started:
            note = "stopped before the ranks had started; nothing was done"
            return Ending(EXIT_STOPPED, False, None, note)
        if self._listens and self._num_signals > 1 and report.status is None:
            note = "ended by a second signal; --resume goes on from the last checkpoint"
            return Ending(EXIT_KILLED, False, None, note)
        if not self._listens:
            return Ending(status, status != 0, None)
        if status == 0 and report.status is not None:
            return Ending(report.status, False, None)
        return Ending(status or 1, True, cause)

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        """Pass the ranks' errors on to the user, and keep what is for us."""
        if process.stderr is None:
            return
        for line in process.stderr:
            if not self.report.take(line.decode(errors="replace")):
                try:
                    os.write(2, line)
                except OSError:
                    continue  # nobody can hear; go on, or mpiexec would block

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._num_signals += 1
        can_save = self.report.has_started and self._num_signals == 1
        if self._process:
            self._process.send_signal(signal.SIGUSR1 if can_save else signal.SIGTERM)
