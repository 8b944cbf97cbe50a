"""Builds the namespaces and links of a cluster, and removes them.

    namespace of host 1                the switches' namespace               namespace of host 2
    eth0 (tbf) ------------- veth ------ h1l0 (tbf) = sw0 = h2l0 (tbf) ------ veth ------ (tbf) eth0

Both ends of a pair shape what they send, so each direction has its own limit. `sw0` is a bridge: one a rack and link. Several racks hang
on a bridge `spine0` (link 0), by shaped pairs `up0l0`-`dn0l0`. Nothing of this stands in the machine's own namespace.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable

from ddltrain.cluster.shape import Shape
from ddltrain.errors import ClusterError

# A packet larger than tbf's burst gets cut into single frames, and the emulation would eat the processor: so much more is allowed.
_BURST_MARGIN_BYTES = 4480
# As a switch with deep buffers: several hosts may send to one at once without loss.
_QUEUE_BYTES = 4 << 20

_END_TIMEOUT_S = 5.0


def check_may_build() -> None:
    """Refuse where no cluster can be built.

    Raises:
        ClusterError: not root, or programs are missing.
    """
    if os.geteuid() != 0:
        raise ClusterError("the emulated cluster makes network namespaces, which takes root: run it as root")
    missing = [program for program in ("ip", "tc", "unshare", "mount") if not shutil.which(program)]
    if missing:
        raise ClusterError(
            f"no {' and no '.join(missing)} on PATH: install iproute2 and util-linux (apt-get install iproute2)"
        )


def existing_namespaces() -> set[str]:
    """The names of all network namespaces of this machine."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines() if line.strip()}


def build(shape: Shape) -> bool:
    """Makes namespaces, links, addresses, limits and, without a delay, the switches.

    Returns:
        Whether ports are still to be joined by the delay switch, because this kernel cannot delay packets.

    Raises:
        ClusterError: this machine or kernel refuses a part.
    """
    _batch(["ip"], [f"netns add {name}" for name in shape.namespaces], "CAP_SYS_ADMIN")
    switch = shape.switch_namespace
    ports = list(_host_ports(shape))
    _batch(
        ["ip", "-n", switch],
        [f"link add {port} type veth peer name {eth} netns {host}" for port, eth, host in ports]
        + [f"link add {up} type veth peer name {down}" for up, down in _uplinks(shape)],
        "CAP_NET_ADMIN and a kernel with veth (CONFIG_VETH)",
    )
    _shape_links(shape)
    needs_delay_switch = shape.delay_s > 0 and not _delay_in_kernel(shape)
    _join(shape, racks=not needs_delay_switch)
    inside = [port for port, _, _ in ports] + [name for pair in _uplinks(shape) for name in pair]
    _batch(["ip", "-n", switch], [f"link set {name} addrgenmode none up" for name in inside], "CAP_NET_ADMIN")
    for host in shape.hosts:
        _set_up_host(shape, host)
    return needs_delay_switch


def rack_ports(shape: Shape) -> list[list[str]]:
    """The ports of each switch that hosts hang on: one switch a rack and link."""
    return [
        [
            *(f"h{host}l{link}" for host in shape.hosts if shape.rack(host) == rack),
            *([f"up{rack}l{link}"] if shape.num_racks > 1 else []),
        ]
        for rack in range(shape.num_racks)
        for link in range(shape.num_links)
    ]


def processes_in(namespaces: Iterable[str]) -> list[int]:
    """The processes that live in any of the namespaces. All of them are ours, since the namespaces are."""
    found: list[int] = []
    for name in namespaces:
        listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
        found += map(int, listed.stdout.split())
    return found


def remove(namespaces: Iterable[str]) -> None:
    """Ends all processes in the namespaces and deletes those of them that exist, and with them all links.

    Raises:
        ClusterError: a process does not end.
    """
    present = existing_namespaces()
    names = [name for name in namespaces if name in present]
    deadline_s = time.monotonic() + _END_TIMEOUT_S
    last_signal = signal.SIGTERM
    while processes := processes_in(names):
        if time.monotonic() > deadline_s:
            raise ClusterError(f"processes {processes} in {', '.join(names)} do not end")
        for process in processes:
            try:
                os.kill(process, last_signal)
            except ProcessLookupError:
                continue
        last_signal = signal.SIGKILL
        time.sleep(0.2)
    for name in names:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _host_ports(shape: Shape) -> Iterable[tuple[str, str, str]]:
    for host in shape.hosts:
        for link in range(shape.num_links):
            yield f"h{host}l{link}", f"eth{link}", shape.namespace(host)


def _set_up_host(shape: Shape, host: int) -> None:
    program = ["ip", "-n", shape.namespace(host)]
    lines = ["link set lo up"]
    routes = []
    for link in range(shape.num_links):
        address = shape.address(host, link)
        lines.append(f"addr add {address}/24 dev eth{link} noprefixroute")
        lines.append(f"link set eth{link} addrgenmode none gso_max_size {shape.packet_bytes} up")
        routes.append(
            f"route add {shape.network(link)} dev eth{link} scope link src {address} congctl {shape.congestion}"
        )
    _batch(program, lines, "CAP_NET_ADMIN")
    _batch(program, routes, f"TCP's congestion control {shape.congestion!r} (--congestion takes another)")


def _uplinks(shape: Shape) -> list[tuple[str, str]]:
    if shape.num_racks == 1:
        return []
    return [
        (f"up{rack}l{link}", f"dn{rack}l{link}")
        for rack in range(shape.num_racks)
        for link in range(shape.num_links)
    ]


def _shape_links(shape: Shape) -> None:
    needs = "a kernel with the token bucket filter (CONFIG_NET_SCH_TBF)"
    for _, eth, host in _host_ports(shape):
        _batch(["tc", "-n", host], [_limit(eth, shape.rate_bits_s, shape.packet_bytes)], needs)
    lines = [_limit(port, shape.rate_bits_s, shape.packet_bytes) for port, _, _ in _host_ports(shape)]
    lines += [
        _limit(name, shape.uplink_bits_s, shape.packet_bytes) for pair in _uplinks(shape) for name in pair
    ]
    _batch(["tc", "-n", shape.switch_namespace], lines, needs)


def _limit(device: str, rate_bits_s: float, packet_bytes: int) -> str:
    burst_bytes = packet_bytes + _BURST_MARGIN_BYTES
    return f"qdisc add dev {device} root handle 1: tbf rate {rate_bits_s:.0f}bit burst {burst_bytes} limit {_QUEUE_BYTES}"


def _delay_in_kernel(shape: Shape) -> bool:
    """Delays what the switches send to hosts and down from the spine; False where the kernel has no netem."""
    ports = [port for port, _, _ in _host_ports(shape)] + [down for _, down in _uplinks(shape)]
    lines = [
        f"qdisc add dev {port} parent 1:1 netem delay {shape.delay_s * 1e6:.0f}us limit 100000"
        for port in ports
    ]
    command = ["tc", "-n", shape.switch_namespace, "-batch", "-"]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)
    return done.returncode == 0


def _join(shape: Shape, racks: bool) -> None:
    """Joins ports by bridges: those of each rack if `racks`, and the racks' uplinks."""
    bridges: dict[str, list[str]] = {}
    if racks:
        bridges |= {f"sw{number}": ports for number, ports in enumerate(rack_ports(shape))}
    if shape.num_racks > 1:
        bridges |= {
            f"spine{link}": [f"dn{rack}l{link}" for rack in range(shape.num_racks)]
            for link in range(shape.num_links)
        }
    lines: list[str] = []
    for bridge, ports in bridges.items():
        lines += [f"link add {bridge} type bridge", f"link set {bridge} addrgenmode none up"]
        lines += [f"link set {port} master {bridge}" for port in ports]
    _batch(["ip", "-n", shape.switch_namespace], lines, "a kernel with bridges (CONFIG_BRIDGE)")


def _batch(program: list[str], lines: list[str], needs: str) -> None:
    done = subprocess.run(
        [*program, "-batch", "-"], input="\n".join(lines), capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = done.stderr.strip().splitlines()[0] if done.stderr.strip() else f"status {done.returncode}"
        raise ClusterError(f"{' '.join(program)} refuses ({reason}); the emulated cluster needs {needs}")
