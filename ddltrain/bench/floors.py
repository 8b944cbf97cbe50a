"""The least time that an all-reduce can take where it runs, from the speed of links or of memory.

Between hosts: whatever the algorithm, each of H hosts has to send and to receive 2 (H-1)/H of the data. The ranks of a host share its
links. Inside a host: the data of each of p ranks is read and the result is written to each, 2 p N bytes in all. Data that stays in the
processor's caches can be quicker than that floor, which counts on main memory.
"""

import fcntl
import json
import os
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ddltrain.cluster.run import LINKS_VARIABLE
from ddltrain.cluster.shape import GOODPUT_SHARE, parse_rate, plural
from ddltrain.comm.world import World

_MEMORY_BYTES = 64 << 20
_MEMORY_TRIES = 20
_LINK_BYTES = 8 << 20
# Below the size from which MPI libraries ask the receiver first.
_PIECE_BYTES = 32 << 10
_SIOCGIFADDR = 0x8915


@dataclass(frozen=True)
class Place:
    """Where the ranks run.

    Attributes:
        description: for people.
        num_hosts: hosts.
        local_size: ranks of the fullest host.
        link_bytes_s: payload that all links of one host carry together in each direction; 0 with one host.
        memory_bytes_s: read and written together, by all ranks of a host at once.
        num_racks: racks of hosts.
        uplink_bytes_s: payload that a rack's uplinks carry; 0 with one rack.
    """

    description: str
    num_hosts: int
    local_size: int
    link_bytes_s: float
    memory_bytes_s: float
    num_racks: int = 1
    uplink_bytes_s: float = 0.0

    def floor_s(self, size_bytes: int) -> float:
        """The least time for `size_bytes` a rank; 0 where nothing has to move."""
        if self.num_hosts > 1:
            between_hosts = _ring_s(self.num_hosts, size_bytes, self.link_bytes_s)
            return max(between_hosts, _ring_s(self.num_racks, size_bytes, self.uplink_bytes_s))
        if self.local_size > 1:
            return 2 * self.local_size * size_bytes / self.memory_bytes_s
        return 0.0

    def describe_floor(self) -> str:
        """One line that says what floor_s counts on."""
        if self.num_hosts == 1:
            return f"memory {self.memory_bytes_s / 1e9:.1f} GB/s (measured)"
        uplinks = f", uplinks {self.uplink_bytes_s / 1e6:.1f} MB/s a rack" if self.num_racks > 1 else ""
        return f"links {self.link_bytes_s / 1e6:.2f} MB/s of payload a host and direction{uplinks}"


def _ring_s(parts: int, size_bytes: int, bytes_s: float) -> float:
    return 2 * (parts - 1) / parts * size_bytes / bytes_s if parts > 1 else 0.0


def find_place(world: World, rate: str | None, num_hosts: int | None, environ: Mapping[str, str]) -> Place:
    """Find out where we run, and measure what nobody states.

    Collective.

    Args:
        rate: of a host's links in each direction, as people write it; overrides all else.
        num_hosts: overrides the number of host names.
        environ: an emulated cluster says there what its links carry.
    """
    names: list[str] = world.comm.allgather(world.host)
    hosts = num_hosts or len(set(names))
    local_size = max(map(names.count, names))
    facts = json.loads(environ.get(LINKS_VARIABLE, "{}"))
    link_bytes_s = 0.0
    if hosts > 1:
        if rate:
            link_bytes_s = parse_rate(rate) / 8 * GOODPUT_SHARE
        else:
            link_bytes_s = facts.get("goodput_bytes_s") or measure_link_bytes_s(world, names)
    return Place(
        description=facts.get("place", f"{plural(hosts, 'host')}, {plural(world.world_size, 'rank')}"),
        num_hosts=hosts,
        local_size=local_size,
        link_bytes_s=link_bytes_s,
        memory_bytes_s=measure_memory_bytes_s(world),
        num_racks=facts.get("racks", 1),
        uplink_bytes_s=facts.get("uplink_bytes_s", 0.0),
    )


def measure_memory_bytes_s(world: World) -> float:
    """Bytes a second that the ranks of the slowest host read and write when all add arrays at once. Collective."""
    own, other = torch.ones(_MEMORY_BYTES // 4), torch.ones(_MEMORY_BYTES // 4)
    times_s = []
    for _ in range(_MEMORY_TRIES):
        world.comm.Barrier()
        start_s = time.perf_counter()
        own.add_(other)
        times_s.append(time.perf_counter() - start_s)
    slowest_s: float = max(world.comm.allgather(min(times_s)))
    local_size: int = min(world.comm.allgather(world.local_size))
    return local_size * 3 * _MEMORY_BYTES / slowest_s


def measure_link_bytes_s(world: World, names: list[str]) -> float:
    """Bytes a second from rank 0 to the first rank of another host, by MPI. Collective."""
    target = next((rank for rank, name in enumerate(names) if name != names[0]), world.world_size - 1)
    piece = bytearray(_PIECE_BYTES)
    elapsed_s = 0.0
    for _ in range(2):  # the first makes the connection
        world.comm.Barrier()
        start_s = time.perf_counter()
        for _ in range(_LINK_BYTES // _PIECE_BYTES):
            if world.rank == 0:
                world.comm.Send(piece, target)
            elif world.rank == target:
                world.comm.Recv(piece, 0)
        if world.rank == 0:
            world.comm.Recv(bytearray(1), target)
            elapsed_s = time.perf_counter() - start_s
        elif world.rank == target:
            world.comm.Send(bytearray(1), 0)
    bytes_s: float = world.comm.bcast(_LINK_BYTES / elapsed_s if world.rank == 0 else 0.0)
    return bytes_s


def own_address(interfaces: str, num_hosts: int) -> str:
    """The address at which ranks of other hosts reach this one.

    Args:
        interfaces: names, separated by commas; the first counts. Empty: what the host name stands for.
    """
    if not interfaces:
        return "127.0.0.1" if num_hosts == 1 else socket.gethostbyname(socket.gethostname())
    name = interfaces.split(",")[0].encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        reply = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", name))
    return socket.inet_ntoa(reply[20:24])


def gloo_interfaces(num_hosts: int) -> str:
    """What GLOO_SOCKET_IFNAME says; on one host the loopback, since a host's name need not stand for any address."""
    return os.environ.get("GLOO_SOCKET_IFNAME", "lo" if num_hosts == 1 else "")
