"""The one door through which tensors travel between ranks."""

import torch

from ddltrain.comm.world import World
from ddltrain.errors import CommError

# MPI counts in 32-bit integers, and libraries have had faults near that limit: stay well below it.
MAX_MESSAGE_BYTES = 1 << 28


class Engine:
    """Collective operations on tensors, in the C++ extension and with the GIL released.

    Every method is collective: all ranks call the same methods in the same order with equal shapes and dtypes.
    """

    def __init__(self, world: World, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        """Collective: duplicates the world's communicator.

        Raises:
            CommError: the extension was built for another MPI than mpi4py's.
        """
        from mpi4py import MPI  # first, so that the extension binds to the MPI library that mpi4py loaded

        from ddltrain.comm import _engine

        built, loaded = _engine.mpi_library_version(), MPI.Get_library_version()
        if built != loaded:
            raise CommError(
                f"the extension runs on '{built.strip()}' but mpi4py on '{loaded.strip()}'; build again with MPICC set to the MPI of mpi4py"
            )
        self._dtypes = {
            torch.float32: _engine.DType.float32,
            torch.float64: _engine.DType.float64,
            torch.int32: _engine.DType.int32,
            torch.int64: _engine.DType.int64,
        }
        self._communicator = _engine.Communicator(MPI._addressof(world.comm), max_message_bytes)
        self._staging: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self.rank = self._communicator.rank
        self.world_size = self._communicator.world_size

    def allreduce_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Replace `tensor` by its sum over all ranks, in place.

        Args:
            tensor: contiguous, float32, float64, int32 or int64, on any device (off the CPU it is staged through host memory).

        Raises:
            TypeError: another dtype, or not contiguous.
        """
        if tensor.dtype not in self._dtypes or not tensor.is_contiguous():
            raise TypeError(
                f"allreduce_ takes a contiguous tensor of {', '.join(map(str, self._dtypes))}; this one is {tensor.dtype} with "
                f"shape {tuple(tensor.shape)} and strides {tensor.stride()}: call .contiguous() or .to(dtype) first"
            )
        if self.world_size > 1 and tensor.numel():
            host = tensor if tensor.device.type == "cpu" else self._staged(tensor)
            self._communicator.allreduce_sum(host.data_ptr(), host.numel(), self._dtypes[host.dtype])
            if host is not tensor:
                tensor.copy_(host)
        return tensor

    def _staged(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in pinned host memory, which the next tensor of this size reuses."""
        key = (tensor.numel(), tensor.dtype)
        if key not in self._staging:
            self._staging[key] = torch.empty(tensor.numel(), dtype=tensor.dtype, pin_memory=True)
        return self._staging[key].view_as(tensor).copy_(tensor)

    def broadcast_(self, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
        """Replace `tensor` (any dtype, layout and device) by that of rank `root`, in place."""
        if self.world_size > 1 and tensor.numel():
            host = tensor.detach().cpu().contiguous()
            self._communicator.broadcast(host.data_ptr(), host.numel() * host.element_size(), root)
            if host.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(host)
        return tensor

    def broadcast_bytes(self, data: bytes | None, world: World) -> bytes | None:
        """What rank 0 passes, on all ranks; what others pass is ignored."""
        if self.world_size == 1:
            return data
        size_bytes: int | None = world.comm.bcast(None if data is None else len(data))
        if size_bytes is None:
            return None
        shared = torch.empty(size_bytes, dtype=torch.uint8)
        if self.rank == 0 and data is not None:
            shared.numpy()[:] = memoryview(data)
        return self.broadcast_(shared).numpy().tobytes()

    def barrier(self) -> None:
        """Return once every rank has called it."""
        self._communicator.barrier()
