"""The folder in memory in which Open MPI keeps what the ranks of a host share, so that nothing is left however a job ends."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ddltrain.comm.folder_lock import ALONE_OR_NEVER, SHARED, FolderLock

# Names the job for the ranks, their guards and whoever cleans up behind them.
JOB_VARIABLE = "DDL_JOB"

_PREFIX = "ddltrain-job-"
_held: list[FolderLock] = []  # as long as the process lives


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
        _held.append(FolderLock(folder, SHARED))


def leave_job_folder(environ: Mapping[str, str]) -> None:
    """Remove the folder if nobody else on this host holds it."""
    for lock in _held:
        with contextlib.suppress(OSError):  # the others still need it
            lock.change(ALONE_OR_NEVER)
            shutil.rmtree(job_folder(environ[JOB_VARIABLE]), ignore_errors=True)


@contextmanager
def kept_job_folder(job: str) -> Iterator[None]:
    """Hold the folder for a job on this host, and remove it afterwards; what killed jobs have left is swept first."""
    sweep_job_folders()
    folder = job_folder(job)
    folder.mkdir(mode=0o700)
    try:
        with FolderLock(folder, SHARED):
            yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep_job_folders() -> None:
    """Remove what killed jobs have left on this host; what a living one uses is locked."""
    for folder in Path(_shared_memory()).glob(f"{_PREFIX}*"):
        # Where that fails it is in use, or another user's.
        with contextlib.suppress(OSError), FolderLock(folder, ALONE_OR_NEVER):
            shutil.rmtree(folder, ignore_errors=True)


def remove_own_segments() -> None:
    """Remove the files that Open MPI has made for this process outside of a job's folder. It must be the only rank of its world."""
    with contextlib.suppress(OSError):  # not on Linux
        for line in Path("/proc/self/maps").read_text().splitlines():
            file = Path(line.split(maxsplit=5)[-1])
            if file.name.startswith("sm_segment."):  # mapped by a world of one: nobody else's
                file.unlink(missing_ok=True)


def _shared_memory() -> str:
    """The folder of files in memory; the system's temporary folder where there is none."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
