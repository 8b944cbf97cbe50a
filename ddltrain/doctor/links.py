"""How quick the way between ranks is: messages to and fro between neighbours, one pair at a time."""

import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddltrain.comm.world import World

_SMALL_BYTES = 8
_LARGE_BYTES = 4 << 20
_NUM_SMALL = 50
_TIME_S = 0.5  # for large messages of one pair
_MAX_LARGE = 20


@dataclass(frozen=True)
class Link:
    """The way from one rank to another.

    Attributes:
        latency_s: one way, 8 bytes, the median.
        bandwidth_bytes_s: one way, 4 MiB, the median.
    """

    source: int
    target: int
    source_host: str
    target_host: str
    latency_s: float
    bandwidth_bytes_s: float


def measure_links(world: World) -> list[Link]:
    """Measure each rank's way to the next, the last one's to rank 0, on rank 0's word. Collective.

    Returns:
        On all ranks the links; none on one rank.
    """
    hosts: list[str] = world.comm.allgather(world.host)
    links = []
    pairs = [(rank, (rank + 1) % world.world_size) for rank in range(world.world_size)]
    for source, target in pairs if world.world_size > 2 else pairs[: world.world_size - 1]:
        world.comm.Barrier()
        figures = _ping(world.comm, target) if world.rank == source else None
        if world.rank == target:
            _pong(world.comm, source)
        latency_s, bandwidth_bytes_s = world.comm.bcast(figures, root=source)
        links.append(Link(source, target, hosts[source], hosts[target], latency_s, bandwidth_bytes_s))
    return links


def _ping(comm: Any, target: int) -> tuple[float, float]:
    small, large = np.zeros(_SMALL_BYTES, np.uint8), np.zeros(_LARGE_BYTES, np.uint8)
    for _ in range(3):
        _there_and_back(comm, target, small)
    latency_s = statistics.median(_there_and_back(comm, target, small) / 2 for _ in range(_NUM_SMALL))
    times_s = [_there_and_back(comm, target, large) / 2]
    until_s = time.perf_counter() + _TIME_S
    while len(times_s) < _MAX_LARGE and time.perf_counter() < until_s:
        times_s.append(_there_and_back(comm, target, large) / 2)
    comm.Send(np.zeros(0, np.uint8), target)  # the end
    return latency_s, _LARGE_BYTES / statistics.median(times_s)


def _there_and_back(comm: Any, target: int, data: np.ndarray) -> float:
    start_s = time.perf_counter()
    comm.Send(data, target)
    comm.Recv(data, target)
    return time.perf_counter() - start_s


def _pong(comm: Any, source: int) -> None:
    from mpi4py import MPI

    buffer = np.zeros(_LARGE_BYTES, np.uint8)
    status = MPI.Status()
    while True:
        comm.Recv(buffer, source, status=status)
        count = status.Get_count(MPI.BYTE)
        if count == 0:
            return
        comm.Send(buffer[:count], source)
