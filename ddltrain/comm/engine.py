"""The one door through which tensors travel between ranks.

    allreduce_  ─►  algorithm  ─►  plan (cached by size)  ─►  executor in C++ (GIL released)

    "auto": what `tune` found quickest for buffers of about this size; before it was asked

    buffers in shared windows   one host: shared_memory     several hosts: hierarchical
    other buffers               small: the MPI library's own (16-bit and async: halving_doubling)     large: ring

Tensors here may as well be NumPy arrays. All ranks call the same methods in the same order with equal shapes and dtypes.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from ddltrain.comm.collectives import part_of
from ddltrain.comm.handle import Handle
from ddltrain.comm.plans import PLANNERS
from ddltrain.comm.tuning import Choice, load, measure, save
from ddltrain.comm.waits import waiting
from ddltrain.comm.world import World, agreed
from ddltrain.errors import CommError

# MPI counts in 32-bit integers, and libraries have had faults near that limit: stay well below it.
MAX_MESSAGE_BYTES = 1 << 28

# Up to here the number of rounds counts, beyond it the bytes that a rank sends.
_SMALL_BYTES = 64 << 10

Buffer = TypeVar("Buffer", torch.Tensor, NDArray[np.generic])


class Engine:
    """Collective operations on tensors.

    Attributes:
        topology: which ranks share a host.
        has_windows: whether `allocate` gives memory that the ranks of a host share.
    """

    def __init__(
        self,
        world: World,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        segment_bytes: int | None = None,
        algorithm: str = "auto",
        timeout_s: float = 600.0,
        use_windows: bool = True,
        ranks_per_host: int = 0,
        check: bool = False,
    ) -> None:
        """Collective: duplicates the world's communicator.

        Args:
            segment_bytes: of a message of a plan. If None, what suits the network, or one host.
            algorithm: a planner, "mpi" for the library's own all-reduce, or "auto" (see the top of this module).
            timeout_s: how long an operation may make no progress.
            check: compare every result of `allreduce_` with that of the MPI library, and raise where they differ.
            ranks_per_host: if not 0, so many ranks of a host count as a host of their own (one for each socket, say).

        Raises:
            CommError: the extension was built for another MPI than mpi4py's, or the algorithm does not exist.
        """
        from mpi4py import MPI  # first, so that the extension binds to the MPI library that mpi4py loaded

        from ddltrain.comm import _engine
        from ddltrain.comm.runner import Runner

        built, loaded = _engine.mpi_library_version(), MPI.Get_library_version()
        if built != loaded:
            raise CommError(
                f"the extension runs on '{built.strip()}' but mpi4py on '{loaded.strip()}'; build again with MPICC set to the MPI of mpi4py"
            )
        if algorithm not in (*PLANNERS, "mpi", "auto"):
            raise CommError(
                f"algorithm '{algorithm}' does not exist: take auto, mpi or one of {', '.join(PLANNERS)}"
            )
        self._algorithm = algorithm
        self._checks = check
        self._choices: list[Choice] = []
        self._staging: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._runner = Runner(
            MPI._addressof(world.comm),
            max_message_bytes,
            segment_bytes,
            timeout_s,
            use_windows,
            ranks_per_host,
        )
        self.rank = self._runner.rank
        self.world_size = self._runner.world_size
        self.topology = self._runner.topology
        self.has_windows = self._runner.has_windows

    def allocate(self, bytes: int) -> torch.Tensor:
        """Zeroed memory, uint8 [bytes], in a window that the ranks of this host share, where windows can be had.

        Collective: with the same size on all ranks. All-reduces of tensors in it are many times quicker inside a host. It lives as long as
        a tensor that shows it.
        """
        return self._runner.allocate(bytes)

    def allreduce_(
        self,
        tensor: Buffer,
        op: str = "sum",
        wire: str | None = None,
        algorithm: str | None = None,
        name: str = "",
    ) -> Buffer:
        """Replace `tensor` by its reduction over all ranks, in place. Collective.

        Args:
            tensor: contiguous; float16/32/64, bfloat16, int32 or int64; on any device (off the CPU it is staged through host memory).
            op: "sum", "avg" (of floats), "min" or "max".
            wire: "bf16" or "fp16" sends float32 in 16 bits between hosts.
            algorithm: instead of the engine's.
            name: for errors.

        Raises:
            TypeError: another dtype, or not contiguous.
            CommError: ranks disagree, or one does not come.
        """
        whole = _tensor_of(tensor)
        self._runner.check(whole, op, wire)
        if self.world_size == 1 or not whole.numel():
            return tensor
        host = whole if whole.is_cpu else self._staged(whole)
        in_window = self._runner.in_window(host)
        chosen = self._choose(host, algorithm or self._algorithm, in_window)
        before = host.clone() if self._checks else None
        if chosen == "mpi":
            self._runner.allreduce_by_mpi(host, op)
        else:
            self._runner.run(host, chosen, in_window, op, wire, name)
        if before is not None:
            self._compare(host, before, op, wire, f"{chosen} {name}".strip())
        if host is not whole:
            whole.copy_(host)
        return tensor

    def allreduce_async(
        self,
        tensor: torch.Tensor | NDArray[np.generic],
        op: str = "sum",
        wire: str | None = None,
        algorithm: str | None = None,
        name: str = "",
        priority: int = 0,
    ) -> Handle:
        """Start what `allreduce_` does, and return at once. Collective.

        Several may be under way; those of higher priority, then the older ones, go first. Takes CPU tensors only.
        """
        whole = _tensor_of(tensor)
        self._runner.check(whole, op, wire)
        if not whole.is_cpu:
            raise TypeError(f"allreduce_async takes tensors on the CPU; this one is on {whole.device}")
        if self.world_size == 1 or not whole.numel():
            return Handle(lambda: None, lambda: True, whole)
        in_window = self._runner.in_window(whole)
        chosen = self._choose(whole, algorithm or self._algorithm, in_window)
        if chosen == "mpi":  # would block
            chosen = "halving_doubling"
        return self._runner.submit(whole, chosen, in_window, op, wire, name, priority)

    def reduce_scatter(
        self, tensor: torch.Tensor | NDArray[np.generic], op: str = "sum", name: str = ""
    ) -> torch.Tensor:
        """Reduce over all ranks, and leave each rank its own part. Collective.

        Args:
            tensor: as for `allreduce_`, on the CPU; its other parts are undefined afterwards.

        Returns:
            A view of the rank's part of the flattened tensor: elements size * rank // world_size up to size * (rank + 1) // world_size.
        """
        return self._half(_tensor_of(tensor), "reduce_scatter", op, name)

    def all_gather(self, tensor: Buffer, name: str = "") -> Buffer:
        """Copy every rank's own part of `tensor` (as `reduce_scatter` leaves it) to all ranks, in place. Collective."""
        self._half(_tensor_of(tensor), "all_gather", "sum", name)
        return tensor

    def broadcast_(self, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
        """Replace `tensor` (any dtype, layout and device) by that of rank `root`, in place. Collective."""
        if self.world_size > 1 and tensor.numel():
            host = tensor.detach().cpu().contiguous()
            self._runner.broadcast(host, root)
            if host.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(host)
        return tensor

    def broadcast_bytes(self, data: bytes | None, world: World) -> bytes | None:
        """What rank 0 passes, on all ranks; what others pass is ignored. Collective."""
        if self.world_size == 1:
            return data
        with waiting("a broadcast from rank 0"):
            size_bytes: int | None = world.comm.bcast(None if data is None else len(data))
        if size_bytes is None:
            return None
        shared = torch.empty(size_bytes, dtype=torch.uint8)
        if self.rank == 0 and data is not None:
            shared.numpy()[:] = memoryview(data)
        return self.broadcast_(shared).numpy().tobytes()

    def tune(self, world: World, buffers: Sequence[torch.Tensor], file: Path | None = None) -> list[Choice]:
        """Find the quickest algorithm for each of `buffers`, whose content is lost, and use it for buffers like them from now on.

        Collective. On one host windows always win, so nothing is measured, and runs stay the same to the bit.

        Args:
            file: where choices for this place are taken from; where there are none, they are measured and kept there. Rank 0 reads and
                writes it.

        Returns:
            The choices; none where there is nothing to choose.

        Raises:
            CommError: the file is no tuning file.
        """
        if self._algorithm != "auto" or len(self.topology.hosts) == 1:
            return []
        with agreed(world):
            kept = load(file, self.place()) if file and self.rank == 0 else []
        wanted = {
            (buffer.nbytes, self._runner.in_window(buffer)): buffer for buffer in buffers if buffer.numel()
        }
        choices: list[Choice] = world.comm.bcast(kept)
        if {(choice.size_bytes, choice.in_window) for choice in choices} < wanted.keys():
            choices = [
                measure(world, buffer, in_window, self._candidates(in_window), self._sum)
                for (_, in_window), buffer in sorted(wanted.items(), key=lambda item: item[0])
            ]
            with agreed(world):
                if file and self.rank == 0:
                    save(file, self.place(), choices)
        self._choices = choices
        return choices

    def place(self) -> str:
        """What a choice of algorithm hangs on: the MPI library, and how many ranks are on each host."""
        from mpi4py import MPI

        sizes = " ".join(str(len(host)) for host in self.topology.hosts)
        return f"{MPI.Get_library_version().split(',')[0].strip()}; ranks by host: {sizes}"

    def describe(self, tensor: torch.Tensor) -> str:
        """In words, how `allreduce_` would sum a CPU tensor of this size and place."""
        if self.world_size == 1:
            return "nothing is sent: one rank"
        in_window = self._runner.in_window(tensor)
        chosen = self._choose(tensor, self._algorithm, in_window)
        how = (
            "the MPI library's own all-reduce"
            if chosen == "mpi"
            else self._runner.describe(tensor, chosen, in_window)
        )
        return f"{chosen} ({how}), {'in a shared window' if in_window else 'in private memory'}"

    def waiting(self) -> tuple[float, str]:
        """How long the operations under way have not got on, in seconds, and what the first waits for; 0 and "" without any."""
        return self._runner.waiting()

    def barrier(self) -> None:
        """Return once every rank has called it. Collective."""
        self._runner.barrier()

    def _staged(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in pinned host memory, which the next tensor of this size reuses."""
        key = (tensor.numel(), tensor.dtype)
        if key not in self._staging:
            self._staging[key] = torch.empty(tensor.numel(), dtype=tensor.dtype, pin_memory=True)
        return self._staging[key].view_as(tensor).copy_(tensor)

    def _sum(self, tensor: torch.Tensor, algorithm: str) -> None:
        self.allreduce_(tensor, algorithm=algorithm)

    def _candidates(self, in_window: bool) -> list[str]:
        """What is worth measuring between hosts."""
        several = any(len(host) > 1 for host in self.topology.hosts)
        return [
            name
            for name in (*PLANNERS, "mpi")
            if name != "shared_memory" and (name != "hierarchical" or several or in_window)
        ]

    def _compare(
        self, result: torch.Tensor, before: torch.Tensor, op: str, wire: str | None, what: str
    ) -> None:
        self._runner.allreduce_by_mpi(before, op)
        digits = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
        tolerance = 5e-2 if wire else digits.get(result.dtype, 0.0)
        ours, theirs = result.double(), before.double()
        scale = float(theirs.abs().max())
        if not torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
            worst = float((ours - theirs).abs().max())
            raise CommError(
                f"rank {self.rank}: the result by {what} differs from that of the MPI library by up to {worst:.3g}"
            )

    def _choose(self, tensor: torch.Tensor, algorithm: str, in_window: bool) -> str:
        if algorithm != "auto":
            return algorithm
        like = [choice for choice in self._choices if choice.in_window == in_window]
        if like:
            nearest = min(like, key=lambda choice: abs(math.log(choice.size_bytes / max(1, tensor.nbytes))))
            return nearest.algorithm
        if in_window:
            return "shared_memory" if len(self.topology.hosts) == 1 else "hierarchical"
        if tensor.nbytes > _SMALL_BYTES:
            return "ring"
        return "halving_doubling" if tensor.element_size() == 2 else "mpi"

    def _half(self, tensor: torch.Tensor, algorithm: str, op: str, name: str) -> torch.Tensor:
        self._runner.check(tensor, op, None)
        flat = tensor.view(-1)
        if self.world_size > 1 and len(flat):
            self._runner.run(flat, algorithm, self._runner.in_window(flat), op, None, name)
        return flat[part_of(self.rank, self.world_size, len(flat))]


def _tensor_of(buffer: torch.Tensor | NDArray[np.generic]) -> torch.Tensor:
    return buffer if isinstance(buffer, torch.Tensor) else torch.from_numpy(buffer)
