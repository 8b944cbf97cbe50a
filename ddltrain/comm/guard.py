"""The guard of a rank: the small process that our launcher's mpiexec starts. It starts the rank and says how it ended.

A rank that is killed cannot say so itself, and each MPI says it in its own way, or calls it the fault of the rank that noticed first.
"""

import contextlib
import os
import signal
import socket
from types import FrameType

from ddltrain.comm.job_folder import hold_job_folder, leave_job_folder
from ddltrain.comm.parent import signal_when_parent_dies
from ddltrain.comm.report import LAUNCHER_VARIABLE, tell_end
from ddltrain.comm.world import launcher_rank, launcher_size

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def go_on_as_guarded_rank() -> None:
    """Under our launcher: start a copy of this process and return in it. This one stays as its guard, and ends when it does."""
    if LAUNCHER_VARIABLE not in os.environ:
        return
    signal_when_parent_dies(signal.SIGKILL)  # mpiexec; it would else take its time to notice
    guard = os.getpid()
    hold_job_folder(os.environ)
    for number in _PASSED_ON:  # none may come before the rank is there
        signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    rank = os.fork()
    if rank == 0:
        # A group of its own: mpiexec may signal the guard's whole group, and the rank is to hear it once.
        os.setpgid(0, 0)
        signal_when_parent_dies(signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        return
    _watch(rank)


def _watch(rank: int) -> None:
    """Pass signals on to the rank until it ends, and end as it did."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank, number)

    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    _, encoded = os.waitpid(rank, 0)
    status = os.waitstatus_to_exitcode(encoded)
    if status:
        announced = launcher_size(os.environ)
        world_size = announced[0] if announced else 1
        tell_end(os.environ, launcher_rank(os.environ), world_size, socket.gethostname(), status)
    leave_job_folder(os.environ)
    os._exit(status if status >= 0 else 128 - status)
