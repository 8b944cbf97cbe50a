"""The command that starts the ranks of a job, for each MPI and for Slurm."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass

from ddltrain.comm.launch import SHARED_CORES, open_mpi_environment
from ddltrain.doctor.checks import family
from ddltrain.doctor.facts import SHARED_MEMORY
from ddltrain.errors import LaunchError
from ddltrain.launch.place import SSH, Place

_ENOUGH_SHM_BYTES = 256 << 20


@dataclass(frozen=True)
class Starter:
    """What starts ranks here: "Open MPI", "MPICH", "Intel MPI" or "Slurm", its program and version.

    Attributes:
        pmi: what srun is told to speak with the MPI library.
    """

    kind: str
    program: str
    major: int = 0
    pmi: str = ""


def find_starter(mpiexec: str, mpi: str, is_slurm: bool) -> Starter:
    """Look at mpiexec, or at Slurm.

    Args:
        mpi: the MPI library that ranks load, by its own words.

    Raises:
        LaunchError: an mpiexec that is not known.
    """
    if is_slurm:
        return Starter("Slurm", "srun", pmi="pmix" if family(mpi) == "Open MPI" else "pmi2")
    done = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False)
    version = done.stdout + done.stderr
    kind = family(version)
    if not kind:
        raise LaunchError(
            f"{mpiexec} is of no MPI that launch knows; start by hand, as docs/operating.md tells"
        )
    number = re.search(r"(\d+)\.\d+", version)
    return Starter(kind, mpiexec, int(number[1]) if number else 0)


def start_words(
    starter: Starter, place: Place, network: str, threads: int, binds: bool, added: dict[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The words before the program, and the environment to add.

    Args:
        network: of the interface that MPI is to use, as a name or (Open MPI only) as 10.0.0.0/24; "" leaves it to MPI.
        threads: cores of each rank.
        binds: give each rank so many cores of its own.
        added: variables that every rank is to see.
    """
    environment = {**place.environment, **added}
    if starter.kind == "Open MPI":
        return _open_mpi(starter, place, network, threads, binds, environment)
    if starter.kind == "Slurm":
        return _slurm(starter, place, threads, binds), environment
    if starter.kind == "MPICH":
        return _mpich(starter, place, network, threads, binds, environment)
    return _intel(starter, place, network, threads, binds, environment)


def _open_mpi(
    starter: Starter, place: Place, network: str, threads: int, binds: bool, environment: dict[str, str]
) -> tuple[list[str], dict[str, str]]:
    words = [*place.entry, starter.program]
    if len(place.hosts) > 1 or place.entry:
        # Open MPI 5 has its daemons in a library of their own, with settings of their own.
        mca, plm = ("--prtemca", "plm_ssh") if starter.major >= 5 else ("--mca", "plm_rsh")
        words += [mca, f"{plm}_agent", " ".join(place.agent), mca, f"{plm}_no_tree_spawn", "1"]
        words += ["--host", ",".join(f"{host.name}:{host.num_ranks}" for host in place.hosts)]
    words += ["-n", str(place.world_size)]
    if binds:
        words += ["--map-by", f"slot:PE={threads}", "--bind-to", "core"]
    else:
        words += SHARED_CORES
    if network:
        words += ["--mca", "btl_tcp_if_include", network]
    words += place.mpi_options
    for name in sorted(environment):
        if not name.startswith(("OMPI_", "PRTE_", "PMIX_")):  # those travel by themselves
            words += ["-x", name]
    settings = open_mpi_environment()
    if (
        len(place.hosts) == 1
        and not place.entry
        and "OMPI_MCA_btl" not in os.environ
        and _has_room_in_memory()
    ):
        settings["OMPI_MCA_btl"] = "^tcp"  # or each rank would listen on every network
    return words, settings | environment


def _has_room_in_memory() -> bool:
    """Whether ranks of this host can do without TCP among them."""
    return SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > _ENOUGH_SHM_BYTES


def _mpich(
    starter: Starter, place: Place, network: str, threads: int, binds: bool, environment: dict[str, str]
) -> tuple[list[str], dict[str, str]]:
    words = [*place.entry, starter.program, *_hydra_agent(place)]
    words += ["-hosts", ",".join(f"{host.name}:{host.num_ranks}" for host in place.hosts)]
    words += ["-n", str(place.world_size)]
    if binds:
        words += ["-bind-to", f"core:{threads}"]
    if network:
        words += ["-iface", network]
        environment = {"FI_TCP_IFACE": network, **environment}
    return words, environment


def _intel(
    starter: Starter, place: Place, network: str, threads: int, binds: bool, environment: dict[str, str]
) -> tuple[list[str], dict[str, str]]:
    words = [*place.entry, starter.program, *_hydra_agent(place)]
    ranks = {host.num_ranks for host in place.hosts}
    if len(ranks) > 1:
        raise LaunchError(
            "Intel MPI is started with the same number of ranks on every host; give equal numbers"
        )
    words += ["-hosts", ",".join(host.name for host in place.hosts), "-ppn", str(ranks.pop())]
    words += ["-n", str(place.world_size)]
    settings = {"I_MPI_PIN_DOMAIN": str(threads)} if binds else {"I_MPI_PIN": "0"}
    if network:
        words += ["-iface", network]
        settings["FI_TCP_IFACE"] = network
    return words, settings | environment


def _hydra_agent(place: Place) -> list[str]:
    """For MPICH and Intel MPI, whose agent is one program."""
    if place.agent == SSH:
        return ["-launcher", "ssh"]
    if len(place.agent) > 1:
        raise LaunchError(
            f"this MPI takes an agent of one word, not '{' '.join(place.agent)}'; put it into a script"
        )
    return ["-launcher", "ssh", "-launcher-exec", place.agent[0]]


def _slurm(starter: Starter, place: Place, threads: int, binds: bool) -> list[str]:
    ranks = {host.num_ranks for host in place.hosts}
    words = [starter.program, f"--mpi={starter.pmi}", f"--nodes={len(place.hosts)}"]
    words += [f"--ntasks={place.world_size}", "--distribution=block", "--kill-on-bad-exit=1"]
    if len(ranks) == 1:
        words.append(f"--ntasks-per-node={ranks.pop()}")
    words.append(f"--nodelist={','.join(host.name for host in place.hosts)}")
    words += [f"--cpus-per-task={threads}", "--cpu-bind=cores"] if binds else ["--cpu-bind=none"]
    return words
