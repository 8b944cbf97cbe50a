"""Which ranks share a host."""

from dataclasses import dataclass
from functools import cached_property

from ddltrain.errors import CommError


@dataclass(frozen=True)
class Topology:
    """The ranks of each host, in order. Hosts may hold unequal numbers of ranks, and ranks may lie on hosts in any way."""

    hosts: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        """Check that the ranks are 0 to world_size - 1, each once.

        Raises:
            CommError: they are not, or a host has none.
        """
        if sorted(self.order) != list(range(len(self.order))) or not all(self.hosts):
            raise CommError(f"hosts {self.hosts} must hold the ranks 0 to {len(self.order) - 1}, each once")

    @classmethod
    def flat(cls, num_ranks: int) -> "Topology":
        """Every rank on a host of its own."""
        return cls(tuple((rank,) for rank in range(num_ranks)))

    @classmethod
    def of_sizes(cls, sizes: tuple[int, ...]) -> "Topology":
        """Consecutive ranks on hosts of the given numbers of ranks."""
        starts = [sum(sizes[:host]) for host in range(len(sizes))]
        return cls(
            tuple(tuple(range(start, start + size)) for start, size in zip(starts, sizes, strict=True))
        )

    @cached_property
    def order(self) -> tuple[int, ...]:
        """All ranks, host after host: neighbours in this order mostly share a host."""
        return tuple(rank for host in self.hosts for rank in host)

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return len(self.order)

    @cached_property
    def _host_of(self) -> dict[int, int]:
        return {rank: index for index, host in enumerate(self.hosts) for rank in host}

    def host_of(self, rank: int) -> int:
        """The index in `hosts` of the host of `rank`."""
        return self._host_of[rank]
