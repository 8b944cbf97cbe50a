"""Which ranks share a host, and how they agree. Works without MPI for a program of one rank."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddltrain.comm.topology import Topology
from ddltrain.comm.world import World, agreed
from ddltrain.errors import DdltrainError

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True)
class Hosts:
    """Where this rank stands.

    Attributes:
        topology: the ranks of each host.
        world, comm: None for a program of one rank; `comm` spans the ranks of this host.
        share: the part of the machine that is this host's: less than 1 where hosts are emulated on one machine.
    """

    rank: int
    topology: Topology
    world: World | None
    comm: "MPI.Comm | None"
    share: float

    @property
    def index(self) -> int:
        """The place of this rank's host among the hosts."""
        return self.topology.host_of(self.rank)

    @property
    def own_ranks(self) -> tuple[int, ...]:
        """The ranks of this host."""
        return self.topology.hosts[self.index]

    @property
    def local_rank(self) -> int:
        """The place of this rank among those of its host."""
        return self.own_ranks.index(self.rank)

    def agreed(self) -> AbstractContextManager[None]:
        """As `ddltrain.comm.world.agreed`. Collective."""
        return _alone() if self.world is None else agreed(self.world)

    def gather(self, value: int) -> list[int]:
        """The value of each rank, by rank. Collective."""
        return [value] if self.world is None else self.world.comm.allgather(value)


def find_hosts(world: World | None, ranks_per_host: int = 0) -> Hosts:
    """Collective.

    Args:
        ranks_per_host: if not 0, so many ranks of a host count as a host of their own.
    """
    if world is None:
        return Hosts(0, Topology.flat(1), None, None, 1.0)
    from mpi4py import MPI

    machine = world.comm.Split_type(MPI.COMM_TYPE_SHARED)
    comm = machine.Split(machine.rank // (ranks_per_host or machine.size))
    share = comm.size / machine.size
    machine.Free()
    leaders = world.comm.allgather(comm.bcast(world.rank))
    hosts = tuple(
        tuple(rank for rank, own in enumerate(leaders) if own == leader) for leader in sorted(set(leaders))
    )
    return Hosts(world.rank, Topology(hosts), world, comm, share)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    try:
        yield
    except DdltrainError as error:
        error.on_all_ranks = True
        raise
