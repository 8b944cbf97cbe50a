"""Where a job runs: its hosts, how to reach them, and what is particular to the place."""

import os
import shlex
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ddltrain.launch.hosts import Host

# No questions, and no waiting for a host that is gone.
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5")

# What a program on another host needs of our environment.
_PASSED_ON = ("PYTHONPATH", "LD_LIBRARY_PATH", "MPI4PY_LIBMPI", "MPI4PY_MPIABI", "VIRTUAL_ENV")


@dataclass(frozen=True)
class Place:
    """Hosts in the order of their ranks.

    Attributes:
        agent: program and options that run a command on a host, as ssh does: AGENT HOST COMMAND.
        entry: words before mpiexec, where it does not run right here.
        is_slurm: srun starts the ranks, and reaches the hosts.
        mpi_options: particular to the place, for Open MPI.
        environment: the same for the ranks.
        interface: the network's, where it is known beforehand.
    """

    hosts: tuple[Host, ...]
    agent: tuple[str, ...] = SSH
    entry: tuple[str, ...] = ()
    is_slurm: bool = False
    mpi_options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    interface: str = ""

    @property
    def world_size(self) -> int:
        """The ranks of all hosts."""
        return sum(host.num_ranks for host in self.hosts)

    def with_hosts(self, hosts: Sequence[Host]) -> "Place":
        """The same place with other hosts."""
        return replace(self, hosts=tuple(hosts))

    def host_of(self, rank: int) -> Host:
        """The host that gets `rank`."""
        for host in self.hosts:
            if rank < host.num_ranks:
                return host
            rank -= host.num_ranks
        raise IndexError(rank)

    def command_on(self, host: Host, words: Sequence[str]) -> list[str]:
        """What runs `words` on a host, in our folder and with what it needs of our environment."""
        passed = [f"{name}={os.environ[name]}" for name in _PASSED_ON if name in os.environ]
        text = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(['env', *passed, *words])}"
        if self.is_slurm:
            return [
                "srun",
                "--overlap",
                "--nodes=1",
                "--ntasks=1",
                f"--nodelist={host.name}",
                "sh",
                "-c",
                text,
            ]
        if not self.entry and is_this_machine(host.name):
            return ["sh", "-c", text]
        return [*self.agent, host.name, text]


def is_this_machine(name: str) -> bool:
    """Whether a host's name is this machine's."""
    return name in ("localhost", "127.0.0.1", socket.gethostname(), socket.gethostname().split(".")[0])


def cluster_place(name: str, ranks_per_host: int) -> Place:
    """The hosts of an emulated cluster that stands. Its mpiexec runs on host 1.

    Args:
        ranks_per_host: 0: as the cluster was made for.

    Raises:
        ClusterError: there is no such cluster, or a part of it is gone.
    """
    from ddltrain.cluster import network, state
    from ddltrain.cluster.run import environment, problems
    from ddltrain.errors import ClusterError

    network.check_may_build()
    known = state.read_up(name)
    if problem := problems(known):
        raise ClusterError(f"cluster {name}: {problem}; take it down and up again")
    shape, folder = known.shape, state.folder_of(name)
    interfaces = ",".join(f"eth{link}" for link in range(shape.num_links))
    ranks = ranks_per_host or shape.ranks_per_host
    return Place(
        hosts=tuple(Host(shape.address(host), ranks, f"rack {shape.rack(host)}") for host in shape.hosts),
        agent=(str(folder / "agent"),),
        entry=(str(folder / "enter"), "1"),
        # Only what passes the links: no transport that would find out that all hosts are one machine.
        mpi_options=(
            *("--prtemca", "prte_tmpdir_base", str(folder)),
            *("--mca", "pml", "ob1", "--mca", "btl", "tcp,sm,self"),
        ),
        environment=environment(known, {}),
        interface=interfaces,
    )
