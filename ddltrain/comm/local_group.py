"""The ranks of one host, joined by torch.distributed: NCCL where their tensors are on GPUs, else Gloo.

The group is no default group of torch.distributed, so that others may have theirs. It meets, and Gloo talks, on the loopback interface.
"""

import mmap
import os
import socket
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # exported, but not by name

from ddltrain.comm.engine import Engine

_LOOPBACK = "127.0.0.1"


class Work(Protocol):
    """An operation under way."""

    def wait(self) -> bool:
        """Return once it is done; of NCCL, once the current stream waits for it."""


class LocalGroup:
    """Collective operations on float32 among the ranks of this host. Each returns at once, and is done when its `wait` returns.

    All ranks of the host call the same in the same order, from one thread.

    Attributes:
        backend: "nccl" or "gloo".
        size: the ranks of the host.
        index: which of them this one is.
    """

    def __init__(self, engine: Engine, device: torch.device, timeout_s: float) -> None:
        """Collective over all ranks of the engine."""
        own = engine.topology.host_of(engine.rank)
        self.ranks = engine.topology.hosts[own]
        self.size, self.index = len(self.ranks), self.ranks.index(engine.rank)
        self._board = _Board(engine, own, self.ranks)
        store = _meet(engine, own, self.index, timedelta(seconds=timeout_s))
        self.backend = "nccl" if device.type == "cuda" else "gloo"
        make = _nccl if device.type == "cuda" else _gloo
        self._group = make(store, self.index, self.size, timeout_s)

    def all_reduce(self, whole: torch.Tensor) -> Work:
        """Begin to replace `whole` by its sum."""
        self._board.go_on()
        work: Work = self._group.allreduce([whole])
        return work

    def reduce_scatter(self, whole: torch.Tensor, part: torch.Tensor) -> Work:
        """Begin to sum `whole`; `part` becomes this rank's equal share of the sum."""
        self._board.go_on()
        work: Work = self._group._reduce_scatter_base(part, whole)
        return work

    def all_gather(self, part: torch.Tensor, whole: torch.Tensor) -> Work:
        """Begin to put together `whole` from the parts of all."""
        self._board.go_on()
        work: Work = self._group._allgather_base(whole, part)
        return work

    def missing(self) -> str:
        """The ranks that have not begun what this one has, in words. From any thread."""
        return self._board.missing()


class _Board:
    """How many operations each rank of a host has begun, where all of them see it: in memory without a name."""

    def __init__(self, engine: Engine, host: int, ranks: tuple[int, ...]) -> None:
        self._ranks, self._index = ranks, ranks.index(engine.rank)
        place = torch.zeros(len(engine.topology.hosts), 2, dtype=torch.int64)
        if self._index == 0:
            file = os.memfd_create("ddltrain-board")
            os.ftruncate(file, 8 * len(ranks))
            place[host] = torch.tensor([os.getpid(), file])
        process, number = engine.allreduce_(place)[host].tolist()
        if self._index > 0:
            file = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR)
        self._counts = np.frombuffer(mmap.mmap(file, 8 * len(ranks)), dtype=np.int64)
        engine.barrier()  # all have opened it
        os.close(file)

    def go_on(self) -> None:
        self._counts[self._index] += 1

    def missing(self) -> str:
        late = [
            str(rank)
            for rank, count in zip(self._ranks, self._counts, strict=True)
            if count < self._counts[self._index]
        ]
        return f"rank {', '.join(late)}" if late else "the others of this host"


# The types of torch.distributed do not know all of what follows.
def _nccl(store: Any, index: int, size: int, timeout_s: float) -> Any:
    """It ends the process at its limit: later than we do, who name the rank."""
    return dist.ProcessGroupNCCL(store, index, size, timedelta(seconds=2 * timeout_s))  # type: ignore[arg-type]


def _gloo(store: Any, index: int, size: int, timeout_s: float) -> Any:
    kind: Any = dist.ProcessGroupGloo
    options = kind._Options()
    options._timeout = timedelta(seconds=timeout_s)
    options._devices = [kind.create_device(hostname=_LOOPBACK)]
    return kind(store, index, size, options)


def _meet(engine: Engine, host: int, index: int, limit: timedelta) -> TCPStore:
    """Where the ranks of this host find each other. Collective."""
    ports = torch.zeros(len(engine.topology.hosts), dtype=torch.int64)
    if index == 0:
        listener = socket.create_server((_LOOPBACK, 0))
        ports[host] = listener.getsockname()[1]
        store = TCPStore(
            _LOOPBACK,
            int(ports[host]),
            is_master=True,
            wait_for_workers=False,
            timeout=limit,
            master_listen_fd=listener.detach(),
        )
    port = int(engine.allreduce_(ports)[host])
    if index > 0:
        store = TCPStore(_LOOPBACK, port, is_master=False, wait_for_workers=False, timeout=limit)
    return store
