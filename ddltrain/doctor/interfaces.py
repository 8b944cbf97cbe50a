"""The network interfaces of this machine, and which of them all hosts of a job share."""

import contextlib
import ipaddress
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_GET_ADDRESS = 0x8915  # SIOCGIFADDR
_GET_NETMASK = 0x891B  # SIOCGIFNETMASK

# Bridges and tunnels of containers and virtual machines: their addresses look alike on every host and lead nowhere.
_PRIVATE = ("docker", "virbr", "br-", "veth", "cni", "flannel", "podman", "lxc", "lo")


@dataclass(frozen=True)
class Interface:
    """A network interface with an IPv4 address.

    Attributes:
        network: such as 10.0.0.0/24.
        speed_mbit_s: as the driver tells; 0 where it does not.
    """

    name: str
    address: str
    network: str
    speed_mbit_s: int

    @property
    def is_private(self) -> bool:
        """Whether it leads to nothing but containers of this host."""
        return self.name.startswith(_PRIVATE)


def interfaces() -> list[Interface]:
    """All that are up and have an IPv4 address, the loopback included."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # no IPv4 address
                address, mask = _ask(probe, name, _GET_ADDRESS), _ask(probe, name, _GET_NETMASK)
                network = ipaddress.ip_network(f"{address}/{mask}", strict=False)
                found.append(Interface(name, address, str(network), _speed(name)))
    return found


def _ask(probe: socket.socket, name: str, what: int) -> str:
    import fcntl

    answer = fcntl.ioctl(probe.fileno(), what, struct.pack("256s", name.encode()[:15]))
    return socket.inet_ntoa(answer[20:24])


def _speed(name: str) -> int:
    try:
        return max(0, int(Path(f"/sys/class/net/{name}/speed").read_text()))
    except (OSError, ValueError):
        return 0


def shared_network(hosts: Sequence[Sequence[Interface]]) -> str:
    """The network that every host is on, the quickest one of several; "" where there is none."""
    common = set.intersection(*({one.network for one in host if not one.is_private} for host in hosts))
    speeds = {
        network: min(max(one.speed_mbit_s for one in host if one.network == network) for host in hosts)
        for network in common
    }
    return max(sorted(speeds), key=lambda network: speeds[network], default="")
