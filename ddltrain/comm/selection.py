"""Which algorithm sums a buffer: the one that was asked for, the quickest by what `tune` measured, or a rule of thumb.

"auto"   measured                     the lowest time at the buffer's size, interpolated between the sizes measured
         buffers in shared windows    one host: shared_memory     several hosts: hierarchical
         other buffers                small: the MPI library's own (16-bit: halving_doubling)     large: ring
"""

import math
from collections.abc import Sequence

import torch

from ddltrain.comm.plans import PLANNERS
from ddltrain.comm.topology import Topology
from ddltrain.comm.tuning import Choice
from ddltrain.errors import CommError

MPI_OWN = "mpi"
AUTO = "auto"

# Up to here the number of rounds counts, beyond it the bytes that a rank sends.
_SMALL_BYTES = 64 << 10

# A buffer that is smaller than another one by no more than this factor is taken to behave like it.
_ALIKE = 1.3

# Of one size, and in a window or not.
Key = tuple[int, bool]


class Selection:
    """Chooses algorithms; the same on all ranks for equal buffers."""

    def __init__(self, topology: Topology, algorithm: str) -> None:
        """Takes the algorithm for buffers of which none is asked for.

        Raises:
            CommError: there is no such algorithm.
        """
        if algorithm not in (*PLANNERS, MPI_OWN, AUTO):
            raise CommError(
                f"algorithm '{algorithm}' does not exist: take auto, mpi or one of {', '.join(PLANNERS)}"
            )
        self._topology = topology
        self._algorithm = algorithm
        self._choices: dict[str | None, list[Choice]] = {}
        self._chosen: dict[tuple[int, int, bool, str | None], str] = {}

    def learn(self, choices: list[Choice], wire: str | None) -> None:
        """Take over what was measured for tensors that are sent as `wire`."""
        self._choices[wire] = choices
        self._chosen.clear()

    def choose(
        self, tensor: torch.Tensor, in_window: bool, wire: str | None, algorithm: str | None = None
    ) -> str:
        """The algorithm for a tensor that lies `in_window` or not; `algorithm` if one is asked for."""
        algorithm = algorithm or self._algorithm
        if algorithm != AUTO:
            return algorithm
        # Kept, for with many ranks on a core even this little work of each shows in what short messages take.
        wanted = (tensor.nbytes, tensor.element_size(), in_window, wire)
        if wanted not in self._chosen:
            self._chosen[wanted] = self._choose(*wanted)
        return self._chosen[wanted]

    def _choose(self, size_bytes: int, element_bytes: int, in_window: bool, wire: str | None) -> str:
        one_host = len(self._topology.hosts) == 1
        if in_window and one_host:
            return "shared_memory"
        if measured := [choice for choice in self._choices.get(wire, []) if choice.in_window == in_window]:
            return quickest(measured, size_bytes)
        if in_window:
            return "hierarchical"
        if size_bytes > _SMALL_BYTES:
            return "ring"
        return "halving_doubling" if element_bytes == 2 else MPI_OWN

    def to_measure(
        self, buffers: Sequence[torch.Tensor], in_window: Sequence[bool]
    ) -> dict[Key, torch.Tensor]:
        """Those of `buffers` that stand for all of them, by size and place; none where there is nothing to choose.

        Inside a host windows always win, and so runs stay the same to the bit.
        """
        if self._algorithm != AUTO or self._topology.world_size == 1:
            return {}
        wanted = {
            (buffer.nbytes, inside): buffer
            for buffer, inside in zip(buffers, in_window, strict=True)
            if buffer.numel() and not (inside and len(self._topology.hosts) == 1)
        }
        kept: dict[Key, torch.Tensor] = {}
        for size_bytes, inside in sorted(wanted, reverse=True):
            if not any(place == inside and own < size_bytes * _ALIKE for own, place in kept):
                kept[size_bytes, inside] = wanted[size_bytes, inside]
        return kept

    def candidates(self) -> list[str]:
        """What is worth measuring, where `to_measure` gives something."""
        several = any(len(host) > 1 for host in self._topology.hosts)
        unfit = {"shared_memory"} | (set() if several else {"hierarchical"})  # which would be a ring
        return [name for name in (*PLANNERS, MPI_OWN) if name not in unfit]


def quickest(measured: Sequence[Choice], size_bytes: int) -> str:
    """The algorithm with the lowest time at a size: between two that were measured, times lie on a line in logarithms.

    Args:
        measured: at least one, all in windows or all not.
    """
    ordered = sorted(measured, key=lambda choice: choice.size_bytes)
    above = next((choice for choice in ordered if choice.size_bytes >= size_bytes), ordered[-1])
    below = next((choice for choice in reversed(ordered) if choice.size_bytes <= size_bytes), ordered[0])
    if above.size_bytes <= below.size_bytes:  # measured at this size, or beyond the sizes measured
        return above.algorithm
    share = math.log(size_bytes / below.size_bytes) / math.log(above.size_bytes / below.size_bytes)
    both = {
        name: (1 - share) * math.log(below.times_s[name]) + share * math.log(above.times_s[name])
        for name in below.times_s
        if name in above.times_s
    }
    return min(both, key=both.__getitem__, default=above.algorithm)
