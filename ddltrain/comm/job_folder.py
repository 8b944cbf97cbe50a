"""The folder in memory in which Open MPI keeps what the ranks of a host share, so that nothing is left however a job ends."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

# Names the job for the ranks, their guards and whoever cleans up behind them.
JOB_VARIABLE = "DDL_JOB"

_PREFIX = "ddltrain-job-"
_held: list[int] = []  # descriptors that stay open, and locked, as long as the process lives


def job_folder(job: str) -> Path:
    """Where it lies on each host of the job."""
    return Path(_shared_memory()) / f"{_PREFIX}{job}"


def backing_folder_setting(job: str) -> dict[str, str]:
    """The setting that makes Open MPI use it."""
    return {"OMPI_MCA_btl_sm_backing_directory": str(job_folder(job))}


def hold_job_folder(environ: Mapping[str, str]) -> None:
    """Make the folder on this host, and keep others from sweeping it while this process lives."""
    if JOB_VARIABLE in environ:
        folder = job_folder(environ[JOB_VARIABLE])
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        _held.append(descriptor)


def leave_job_folder(environ: Mapping[str, str]) -> None:
    """Remove the folder if nobody else on this host holds it."""
    for descriptor in _held:
        with contextlib.suppress(OSError):  # the others still need it
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(job_folder(environ[JOB_VARIABLE]), ignore_errors=True)


@contextmanager
def kept_job_folder(job: str) -> Iterator[None]:
    """Hold the folder for a job on this host, and remove it afterwards; what killed jobs have left is swept first."""
    sweep_job_folders()
    folder = job_folder(job)
    folder.mkdir(mode=0o700)
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)
        shutil.rmtree(folder, ignore_errors=True)


def sweep_job_folders() -> None:
    """Remove what killed jobs have left on this host; what a living one uses is locked."""
    for folder in Path(_shared_memory()).glob(f"{_PREFIX}*"):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue  # another user's
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # in use
        finally:
            os.close(descriptor)


def _shared_memory() -> str:
    """The folder of files in memory; the system's temporary folder where there is none."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
