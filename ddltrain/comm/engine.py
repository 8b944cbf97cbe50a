"""The one door through which tensors travel between ranks.

    allreduce_  ─►  selection of an algorithm  ─►  plan (cached by size)  ─►  executor in C++ (GIL released)

Tensors here may as well be NumPy arrays. All ranks call the same methods in the same order with equal shapes and dtypes.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from ddltrain.comm.collectives import part_of
from ddltrain.comm.fusion import Fusion
from ddltrain.comm.handle import Handle
from ddltrain.comm.selection import MPI_OWN, Selection
from ddltrain.comm.tuning import Choice, load, measure, save
from ddltrain.comm.waits import waiting
from ddltrain.comm.way import Way
from ddltrain.comm.world import World, agreed

# MPI counts in 32-bit integers, and libraries have had faults near that limit: stay well below it.
MAX_MESSAGE_BYTES = 1 << 28

Buffer = TypeVar("Buffer", torch.Tensor, NDArray[np.generic])


class Engine:
    """Collective operations on tensors.

    Attributes:
        topology: which ranks share a host.
        has_windows: whether `allocate` gives memory that the ranks of a host share.
        has_background: whether operations get on while nobody waits.
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
        verify: bool = False,
    ) -> None:
        """Collective: duplicates the world's communicator.

        Args:
            segment_bytes: of a message of a plan. If None, what suits the network, or one host.
            algorithm: a planner, "mpi" for the library's own all-reduce, or "auto" (see `Selection`).
            timeout_s: how long an operation may make no progress.
            ranks_per_host: if not 0, so many ranks of a host count as a host of their own (one for each socket, say).
            check: compare every result of `allreduce_` with that of the MPI library, and raise where they differ.
            verify: prove every plan before it is first used (`ddltrain.comm.verify`): seconds for many ranks.

        Raises:
            CommError: the extension was built for another MPI than mpi4py's, or the algorithm does not exist.
        """
        from mpi4py import MPI  # first, so that the extension binds to the MPI library that mpi4py loaded

        from ddltrain.comm.runner import Runner, check_library

        check_library()
        self._checks = check
        self._blocked_s = 0.0
        self._staging: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._fusion = Fusion(self.allocate)
        self._runner = Runner(
            MPI._addressof(world.comm),
            max_message_bytes,
            segment_bytes,
            timeout_s,
            use_windows,
            ranks_per_host,
            verify,
        )
        self._selection = Selection(self._runner.topology, algorithm)
        self.rank = self._runner.rank
        self.world_size = self._runner.world_size
        self.topology = self._runner.topology
        self.has_windows = self._runner.has_windows
        self.has_background = self._runner.has_background

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
        residual: torch.Tensor | None = None,
    ) -> Buffer:
        """Replace `tensor` by its reduction over all ranks, in place. Collective.

        Args:
            tensor: contiguous; float16/32/64, bfloat16, int32 or int64; on any device (off the CPU it is staged through host memory).
            op: "sum", "avg" (of floats), "min" or "max".
            wire: "bf16" or "fp16" sends float32 in 16 bits between hosts.
            algorithm: instead of the engine's.
            name: for errors.
            residual: for error feedback (Seide et al. 2014): float32 on the CPU, of the tensor's shape, each rank its own, zero at first.
                It is added to the tensor, and then takes up what `wire` rounds away on this rank, so that the results of many calls
                add up to those without rounding. With op "sum", and on all ranks or none.

        Raises:
            TypeError: another dtype, or not contiguous.
            CommError: ranks disagree, or one does not come.
        """
        whole = _tensor_of(tensor)
        self._runner.check(whole, op, wire, residual)
        if self.world_size == 1 or not whole.numel():
            return tensor
        host = whole if whole.is_cpu else self._staged(whole)
        in_window = self._runner.in_window(host)
        chosen = self._selection.choose(host, in_window, wire, algorithm)
        _give_back(residual, host)
        before = host.clone() if self._checks else None
        if chosen == MPI_OWN:
            start_s = time.perf_counter()
            self._runner.allreduce_by_mpi(host, op)
            self._blocked_s += time.perf_counter() - start_s
        else:
            self._runner.run(host, chosen, in_window, op, wire, residual, name)
        if before is not None:
            self._runner.compare(host, before, op, wire, f"{chosen} {name}".strip())
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
        residual: torch.Tensor | None = None,
    ) -> Handle:
        """Start what `allreduce_` does, and return at once. Collective.

        Several may be under way; those of higher priority, then the older ones, go first. Takes CPU tensors only. Instead of the MPI
        library's own all-reduce, which would block, it takes halving_doubling. Results are not checked. Until it is done, nobody may
        touch the tensor or `residual`, nor pass them on. With the algorithm "across", ranks reduce with those of the same place in
        other hosts only (`ddltrain.comm.collectives`).
        """
        whole = _tensor_of(tensor)
        self._runner.check(whole, op, wire, residual)
        if not whole.is_cpu:
            raise TypeError(f"allreduce_async takes tensors on the CPU; this one is on {whole.device}")
        if self.world_size == 1 or not whole.numel():
            return Handle(lambda: None, lambda: True, whole)
        in_window = self._runner.in_window(whole)
        chosen = self._selection.choose(whole, in_window, wire, algorithm)
        if chosen == MPI_OWN:  # would block
            chosen = "halving_doubling"
        _give_back(residual, whole)
        return self._runner.submit(whole, chosen, in_window, op, wire, residual, name, priority)

    def allreduce_many_(
        self,
        tensors: Sequence[Buffer],
        op: str = "sum",
        wire: str | None = None,
        algorithm: str | None = None,
        name: str = "",
    ) -> Sequence[Buffer]:
        """Replace each of `tensors` by its reduction over all ranks, in place. Collective.

        What `allreduce_` does for each, but small neighbours of one dtype travel together, which is many times quicker. The arguments are
        those of `allreduce_`; the tensors may be of several dtypes and, if small, not contiguous.
        """
        whole = [_tensor_of(tensor) for tensor in tensors]
        for tensor in whole:
            self._runner.check(tensor.new_empty(0), op, wire)
        if self.world_size == 1:
            return tensors
        self._fusion.allreduce_(whole, lambda tensor: self.allreduce_(tensor, op, wire, algorithm, name))
        return tensors

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

    def tune(
        self,
        world: World,
        buffers: Sequence[torch.Tensor],
        file: Path | None = None,
        wire: str | None = None,
    ) -> list[Choice]:
        """Find the quickest algorithms for `buffers`, whose content is lost, and use them for buffers like these from now on.

        Collective. Sizes close to each other are measured once. In windows on one host shared memory always wins: nothing is measured, and
        runs stay the same to the bit.

        Args:
            file: where choices for this place are taken from; where there are none, they are measured and kept there. Rank 0 reads and
                writes it.
            wire: in which `allreduce_` is going to send.

        Returns:
            The choices; none where there is nothing to choose.

        Raises:
            CommError: the file is no tuning file.
        """
        wanted = self._selection.to_measure(buffers, [self._runner.in_window(buffer) for buffer in buffers])
        if not wanted:
            return []
        with agreed(world):
            kept = load(file, self.place(wire)) if file and self.rank == 0 else []
        choices: list[Choice] = world.comm.bcast(kept)
        if not wanted.keys() <= {(choice.size_bytes, choice.in_window) for choice in choices}:
            choices = [
                measure(
                    world,
                    buffer,
                    in_window,
                    self._selection.candidates(),
                    lambda tensor, algorithm: self.allreduce_(tensor, wire=wire, algorithm=algorithm),
                )
                for (_, in_window), buffer in sorted(wanted.items(), key=lambda item: item[0])
            ]
            with agreed(world):
                if file and self.rank == 0:
                    save(file, self.place(wire), choices)
        self._selection.learn(choices, wire)
        return choices

    def place(self, wire: str | None = None) -> str:
        """What a choice of algorithm hangs on: the MPI library, how many ranks are on each host, and what is sent."""
        from mpi4py import MPI

        sizes = " ".join(str(len(host)) for host in self.topology.hosts)
        sent = f"; sent as {wire}" if wire else ""
        return f"{MPI.Get_library_version().split(',')[0].strip()}; ranks by host: {sizes}{sent}"

    def way_of(self, tensor: torch.Tensor, wire: str | None = None) -> Way:
        """How `allreduce_` would sum this CPU tensor."""
        in_window = self._runner.in_window(tensor)
        return self._runner.way(tensor, self._selection.choose(tensor, in_window, wire), in_window, wire)

    def describe(self, tensor: torch.Tensor, wire: str | None = None) -> str:
        """The same in words."""
        return self.way_of(tensor, wire).words()

    def overlaps(self, tensor: torch.Tensor, wire: str | None = None) -> bool:
        """Whether `allreduce_async` would do for a tensor what `allreduce_` does, and get on with it while nobody waits."""
        if self.world_size == 1 or not tensor.is_cpu or self._checks or not self.has_background:
            return False
        return self._selection.choose(tensor, self._runner.in_window(tensor), wire) != MPI_OWN

    @property
    def busy_s(self) -> float:
        """The time so far, in seconds, with an all-reduce under way on this rank, waits for other ranks included."""
        return self._runner.busy_s + self._blocked_s

    def keep_spans(self, most: int) -> None:
        """From now on keep when each all-reduce was under way on this rank, for so many of them; not of the MPI library's own."""
        self._runner.keep_spans(most)

    def take_spans(self) -> list[tuple[str, int, int]]:
        """Name, start and end of each one kept so far, in nanoseconds of `time.perf_counter_ns`; they are kept no longer."""
        return self._runner.take_spans()

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

    def _half(self, tensor: torch.Tensor, algorithm: str, op: str, name: str) -> torch.Tensor:
        self._runner.check(tensor, op, None)
        flat = tensor.view(-1)
        if self.world_size > 1 and len(flat):
            self._runner.run(flat, algorithm, self._runner.in_window(flat), op, None, None, name)
        return flat[part_of(self.rank, self.world_size, len(flat))]


def _give_back(residual: torch.Tensor | None, tensor: torch.Tensor) -> None:
    """Add what earlier calls rounded away."""
    if residual is not None:
        tensor.add_(residual)
        residual.zero_()


def _tensor_of(buffer: torch.Tensor | NDArray[np.generic]) -> torch.Tensor:
    return buffer if isinstance(buffer, torch.Tensor) else torch.from_numpy(buffer)
