"""What an emulated cluster looks like: hosts, links, racks, and the names and addresses they get."""

import re
from dataclasses import dataclass

from ddltrain.errors import ClusterError

MAX_HOSTS = 64
MAX_LINKS = 2
DEFAULT_PACKET_BYTES = 16000
# Full frames at the least; at the most what a system hands to a network card in one piece.
PACKET_BYTES = (1500, 64000)
# What Linux takes unless told otherwise. A machine set to bbr paces: one more timer a packet, for processors that serve all hosts at once.
DEFAULT_CONGESTION = "cubic"

# Full frames on the wire carry this share of payload: 1448 bytes of TCP data (with its time stamps) in 1514 bytes of Ethernet.
GOODPUT_SHARE = 1448 / 1514

_RATE_UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_TIME_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def parse_rate(text: str) -> float:
    """Bits per second of a rate such as 500mbit or 1gbit.

    Raises:
        ClusterError: no number with one of the units, or less than 1mbit.
    """
    rate_bits_s = _parse(text, _RATE_UNITS, "rate", "500mbit")
    if rate_bits_s < 1e6:
        raise ClusterError(f"rate {text}: the least is 1mbit")
    return rate_bits_s


def parse_delay(text: str) -> float:
    """Seconds of a time such as 0.2ms.

    Raises:
        ClusterError: no number with one of the units, or more than 1s.
    """
    delay_s = _parse(text, _TIME_UNITS, "delay", "0.2ms")
    if delay_s > 1:
        raise ClusterError(f"delay {text}: the most is 1s")
    return delay_s


def _parse(text: str, units: dict[str, float], what: str, example: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]+)", text.strip().lower())
    if not found or found[2] not in units:
        raise ClusterError(
            f"{what} {text!r}: give a number with one of {', '.join(units)}, such as {example}"
        )
    return float(found[1]) * units[found[2]]


@dataclass(frozen=True)
class Shape:
    """An emulated cluster as asked for.

    Attributes:
        name: tells clusters on one machine apart.
        rate_bits_s: of each link of a host, in each direction.
        delay_s: one way between two hosts of a rack; between racks it counts twice.
        num_racks: hosts are dealt to racks in order, about equally many each.
        uplink_bits_s: of the one link (per plane) that joins a rack to the others, in each direction; 0 with one rack.
        num_links: of each host. Each link leads to a plane of its own, with switches of its own.
        packet_bytes: the largest piece that goes over a link at once. Each costs the processor about the same; an idle link lets one
            pass without a limit.
        congestion: TCP's congestion control on these links, whatever the machine's own is.
    """

    name: str
    num_hosts: int
    rate_bits_s: float
    delay_s: float = 0.0
    num_racks: int = 1
    uplink_bits_s: float = 0.0
    num_links: int = 1
    ranks_per_host: int = 1
    packet_bytes: int = DEFAULT_PACKET_BYTES
    congestion: str = DEFAULT_CONGESTION

    def __post_init__(self) -> None:
        """Checks what a user may get wrong.

        Raises:
            ClusterError: a value out of its range, or values that do not fit each other.
        """
        if not re.fullmatch(r"[a-z][a-z0-9]{0,15}", self.name):
            raise ClusterError(
                f"name {self.name!r}: give a lower-case letter and up to 15 letters and digits"
            )
        if not re.fullmatch(r"[a-z][a-z0-9_-]{0,14}", self.congestion):
            raise ClusterError(f"--congestion {self.congestion!r}: give a name such as {DEFAULT_CONGESTION}")
        for what, value, high in (
            ("--hosts", self.num_hosts, MAX_HOSTS),
            ("--links", self.num_links, MAX_LINKS),
            ("--ranks-per-host", self.ranks_per_host, 1024),
            ("--racks", self.num_racks, self.num_hosts),
        ):
            if not 1 <= value <= high:
                raise ClusterError(f"{what} {value}: give a number from 1 to {high}")
        if not PACKET_BYTES[0] <= self.packet_bytes <= PACKET_BYTES[1]:
            raise ClusterError(
                f"--packet {self.packet_bytes}: give a number of bytes from {PACKET_BYTES[0]} to {PACKET_BYTES[1]}"
            )
        if (self.num_racks > 1) != (self.uplink_bits_s > 0):
            raise ClusterError("--racks (2 or more) and --uplink go together: give both or neither")

    @property
    def hosts(self) -> range:
        """The numbers of the hosts, from 1."""
        return range(1, self.num_hosts + 1)

    @property
    def switch_namespace(self) -> str:
        return f"ddl-{self.name}-switch"

    @property
    def namespaces(self) -> list[str]:
        """All namespaces: the hosts', and the one of all switches."""
        return [*map(self.namespace, self.hosts), self.switch_namespace]

    def namespace(self, host: int) -> str:
        return f"ddl-{self.name}-h{host}"

    def hostname(self, host: int) -> str:
        return f"{self.name}-h{host}"

    def address(self, host: int, link: int = 0) -> str:
        return f"10.77.{link}.{host}"

    def network(self, link: int) -> str:
        return f"10.77.{link}.0/24"

    def rack(self, host: int) -> int:
        """The rack (from 0) that `host` stands in."""
        return (host - 1) * self.num_racks // self.num_hosts

    def goodput_bytes_s(self, source: int, target: int) -> float:
        """Payload bytes a second that one link should carry from host to host when all else is quiet."""
        crosses = self.rack(source) != self.rack(target)
        rate_bits_s = min(self.rate_bits_s, self.uplink_bits_s) if crosses else self.rate_bits_s
        return rate_bits_s / 8 * GOODPUT_SHARE

    def uplink_goodput_bytes_s(self, rack: int) -> float:
        """Payload bytes a second that one uplink should carry from a rack to the next when all hosts of the rack send."""
        sizes = [sum(self.rack(host) == number for host in self.hosts) for number in range(self.num_racks)]
        senders, receivers = sizes[rack], sizes[(rack + 1) % self.num_racks]
        rate_bits_s = min(self.uplink_bits_s, self.rate_bits_s * min(senders, receivers))
        return rate_bits_s / 8 * GOODPUT_SHARE

    def round_trip_s(self, source: int, target: int) -> float:
        """The asked-for round trip between two hosts; the machine's own time comes on top."""
        return 2 * self.delay_s * (1 if self.rack(source) == self.rack(target) else 2)

    def describe(self) -> str:
        """One line for people."""
        parts = [
            f"{plural(self.num_hosts, 'host')} x {plural(self.ranks_per_host, 'rank')}",
            f"{plural(self.num_links, 'link')} of {format_rate(self.rate_bits_s)}",
        ]
        if self.delay_s:
            parts.append(f"{self.delay_s * 1e3:g} ms one way")
        if self.num_racks > 1:
            parts.append(f"{self.num_racks} racks with {format_rate(self.uplink_bits_s)} uplinks")
        if self.packet_bytes != DEFAULT_PACKET_BYTES:
            parts.append(f"packets of {self.packet_bytes} bytes")
        if self.congestion != DEFAULT_CONGESTION:
            parts.append(f"TCP with {self.congestion}")
        return ", ".join(parts)


def format_rate(rate_bits_s: float) -> str:
    """500000000 as 500mbit."""
    for unit in ("gbit", "mbit"):
        if rate_bits_s >= _RATE_UNITS[unit]:
            return f"{rate_bits_s / _RATE_UNITS[unit]:g}{unit}"
    return f"{rate_bits_s:g}bit"


def plural(number: int, noun: str) -> str:
    """1, "host" as "1 host"; 4, "host" as "4 hosts"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
