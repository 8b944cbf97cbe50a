"""Measures what the links of a cluster really do, by plain TCP between its namespaces."""

import ctypes
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from ddltrain.cluster.shape import Shape
from ddltrain.errors import ClusterError

# Figures farther than this from what was asked for are refused.
RATE_TOLERANCE = 0.1
DELAY_TOLERANCE = 0.25
# A round trip without any delay takes up to this long on a busy machine.
_OWN_ROUND_TRIP_S = 1e-3

_CLONE_NEWNET = 0x40000000
_PIECE_BYTES = 1 << 17
_SETTLE_S = 0.05
_MEASURE_S = 0.2
_ROUND_TRIPS = 41
_TRIES = 3
# Several senders take a while to get their shares of an uplink, whose queue is deep.
_TOGETHER_SETTLE_S = 0.5
_TOO_BUSY = "the machine is too busy or too slow for this emulation; ask for fewer hosts or a lower rate"


@dataclass(frozen=True)
class Measured:
    """One link: payload bytes a second, and the round trip of 8 bytes."""

    goodput_bytes_s: float
    round_trip_s: float


def check_links(shape: Shape, say: Callable[[str], None]) -> Measured:
    """Measure every link of every host, one at a time, both as sender and receiver, then the uplink of every rack with all its hosts.

    Says what was found.

    Returns:
        The median over the links within a rack.

    Raises:
        ClusterError: a link is off by more than the tolerance, also when measured again.
    """
    if shape.num_hosts == 1:
        say("1 host: no link to measure")
        return Measured(shape.goodput_bytes_s(1, 1), 0.0)
    inside: list[Measured] = []
    across: list[Measured] = []
    for link in range(shape.num_links):
        for source in shape.hosts:
            target = source % shape.num_hosts + 1
            measured = _measured_well(shape, source, target, link)
            say(_line(shape, source, target, link, measured))
            (inside if shape.rack(source) == shape.rack(target) else across).append(measured)
    if across:
        _check_uplinks(shape, say)
        for where, links in (("inside a rack", inside), ("between racks", across)):
            if links:
                say(f"{where}, host to host: {_figures(_median(links))}")
    return _median(inside or across)


def _check_uplinks(shape: Shape, say: Callable[[str], None]) -> None:
    """All hosts of a rack send to the next rack at once: what their own links allow, and the uplink does not, must not arrive."""
    for link in range(shape.num_links):
        for rack in range(shape.num_racks):
            own, others = (
                [host for host in shape.hosts if shape.rack(host) == number]
                for number in (rack, (rack + 1) % shape.num_racks)
            )
            pairs = [(source, others[place % len(others)]) for place, source in enumerate(own)]
            asked_bytes_s = shape.uplink_goodput_bytes_s(rack)
            for _ in range(_TRIES):
                together_bytes_s = _together_bytes_s(shape, pairs, link)
                problem = complaint(asked_bytes_s, 0.0, Measured(together_bytes_s, 0.0))
                if not problem:
                    break
            else:
                raise ClusterError(
                    f"the uplink of rack {rack} {problem}, {_TRIES} times in a row: {_TOO_BUSY}"
                )
            say(
                f"rack {rack} uplink {link} -> rack {(rack + 1) % shape.num_racks}, {len(pairs)} host(s) at once: "
                f"{together_bytes_s / 1e6:.2f} MB/s of payload ({together_bytes_s / asked_bytes_s:.1%} of what the rates allow)"
            )


def _together_bytes_s(shape: Shape, pairs: Sequence[tuple[int, int]], link: int) -> float:
    """Payload bytes a second of all pairs of hosts that send at once."""

    def send(pair: tuple[int, int]) -> float:
        source, target = pair
        names = shape.namespace(source), shape.namespace(target)
        with _connected(*names, shape.address(target, link)) as (client, peer):
            start.wait()
            return _goodput_bytes_s(client, peer, _TOGETHER_SETTLE_S + 20 * shape.round_trip_s(*pair))

    start = threading.Barrier(len(pairs))
    with ThreadPoolExecutor(len(pairs)) as pool:
        return sum(pool.map(send, pairs))


def _median(links: Sequence[Measured]) -> Measured:
    return Measured(
        statistics.median(one.goodput_bytes_s for one in links),
        statistics.median(one.round_trip_s for one in links),
    )


def _figures(measured: Measured) -> str:
    return f"{measured.goodput_bytes_s / 1e6:.2f} MB/s, round trip {measured.round_trip_s * 1e6:.0f} us"


def complaint(asked_bytes_s: float, asked_round_trip_s: float, measured: Measured) -> str:
    """What is wrong with a link; empty if it is as asked for."""
    off = measured.goodput_bytes_s / asked_bytes_s - 1
    if abs(off) > RATE_TOLERANCE:
        return (
            f"carries {measured.goodput_bytes_s / 1e6:.2f} MB/s of payload, {abs(off):.0%} {'more' if off > 0 else 'less'} than "
            f"{asked_bytes_s / 1e6:.2f} (allowed: {RATE_TOLERANCE:.0%})"
        )
    low_s = asked_round_trip_s
    high_s = asked_round_trip_s * (1 + DELAY_TOLERANCE) + _OWN_ROUND_TRIP_S
    if not low_s <= measured.round_trip_s <= high_s:
        return (
            f"takes {measured.round_trip_s * 1e6:.0f} us for a round trip (allowed: {low_s * 1e6:.0f} us to "
            f"{high_s * 1e6:.0f} us)"
        )
    return ""


def _measured_well(shape: Shape, source: int, target: int, link: int) -> Measured:
    asked_bytes_s = shape.goodput_bytes_s(source, target)
    asked_round_trip_s = shape.round_trip_s(source, target)
    problem = ""
    for _ in range(_TRIES):  # another program may have had the processor
        measured = measure(
            shape.namespace(source), shape.namespace(target), shape.address(target, link), asked_round_trip_s
        )
        problem = complaint(asked_bytes_s, asked_round_trip_s, measured)
        if not problem:
            return measured
    raise ClusterError(
        f"the link from host {source} to host {target} {problem}, {_TRIES} times in a row: {_TOO_BUSY}"
    )


def _line(shape: Shape, source: int, target: int, link: int, measured: Measured) -> str:
    asked_bytes_s = shape.goodput_bytes_s(source, target)
    return (
        f"host {source} eth{link} -> host {target}: {measured.goodput_bytes_s / 1e6:.2f} MB/s of payload "
        f"({measured.goodput_bytes_s / asked_bytes_s:.1%} of what the rate allows), round trip {measured.round_trip_s * 1e6:.0f} us"
    )


def measure(source: str, target: str, address: str, round_trip_s: float = 0.0) -> Measured:
    """Measure from the namespace `source` to `address` in the namespace `target`; `round_trip_s` is what to be prepared for."""
    with _connected(source, target, address) as (client, peer):
        round_trip = _round_trip_s(client, peer)
        return Measured(_goodput_bytes_s(client, peer, _SETTLE_S + 20 * round_trip_s), round_trip)


@contextmanager
def _connected(source: str, target: str, address: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection from one namespace to an address in another."""
    with _socket_in(target) as server:
        server.bind((address, 0))
        server.listen(1)
        with _socket_in(source) as client:
            client.settimeout(10)
            client.connect(server.getsockname())
            peer, _ = server.accept()
            with peer:
                peer.settimeout(10)
                yield client, peer


def _socket_in(namespace: str) -> socket.socket:
    """A TCP socket of another network namespace. It stays there whatever its thread does later."""
    made: list[socket.socket] = []
    failed: list[OSError] = []

    def make() -> None:  # in a thread of its own, since the namespace is an attribute of the thread
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            descriptor = os.open(f"/run/netns/{namespace}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                if libc.setns(descriptor, _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
                made.append(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            finally:
                os.close(descriptor)
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if failed:
        raise ClusterError(f"cannot enter the namespace {namespace}: {failed[0]}")
    made[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made[0]


def _round_trip_s(client: socket.socket, peer: socket.socket) -> float:
    def answer() -> None:
        for _ in range(_ROUND_TRIPS):
            peer.sendall(peer.recv(8))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    times_s: list[float] = []
    for _ in range(_ROUND_TRIPS):
        start_s = time.perf_counter()
        client.sendall(b"8 bytes.")
        client.recv(8)
        times_s.append(time.perf_counter() - start_s)
    thread.join()
    return statistics.median(times_s)


def _goodput_bytes_s(client: socket.socket, peer: socket.socket, settle_s: float) -> float:
    end_s = time.perf_counter() + settle_s + _MEASURE_S

    def send() -> None:
        piece = bytes(_PIECE_BYTES)
        while time.perf_counter() < end_s:
            client.sendall(piece)
        client.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    piece = bytearray(_PIECE_BYTES)
    begin_s = last_s = time.perf_counter()
    received_bytes, start_s = 0, 0.0
    while size_bytes := peer.recv_into(piece):
        last_s = time.perf_counter()
        if start_s:
            received_bytes += size_bytes
        elif last_s - begin_s > settle_s:
            start_s = last_s
    thread.join()
    return received_bytes / max(last_s - start_s, 1e-9)
