"""An Ethernet switch in user space that holds every frame for a while, for kernels that cannot delay packets.

Runs in the namespace of the switches, as ``python -m ddltrain.cluster.delay_switch DELAY_S PORT,PORT,... [PORT,PORT,...]``: one
switch for each list of ports. Prints a line when it forwards.
"""

import contextlib
import ctypes
import select
import socket
import sys
import time
from collections import deque

_ETH_P_ALL = 3
_SOL_PACKET = 263
_PACKET_VNET_HDR = 15
_PACKET_IGNORE_OUTGOING = 23
_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33
_PR_SET_TIMERSLACK = 29

_BUFFER_BYTES = 64 << 20
_MAX_FRAME_BYTES = 1 << 17
_FRAMES_A_TURN = 64
# A frame comes with a header of 10 bytes that says how the kernel may cut it; then come the receiver's and the sender's address.
_TARGET = slice(10, 16)
_SOURCE = slice(16, 22)


class Switch:
    """Forwards frames among some ports, and learns who sits at which."""

    def __init__(self, ports: list[str]) -> None:
        self.sockets = [_open_port(port) for port in ports]
        self._port_of: dict[bytes, socket.socket] = {}

    def targets(self, frame: bytes, source: socket.socket) -> list[socket.socket]:
        """The ports that `frame`, which came in at `source`, goes out of."""
        self._port_of[frame[_SOURCE]] = source
        known = self._port_of.get(frame[_TARGET])
        if known is None:
            return [port for port in self.sockets if port is not source]
        return [] if known is source else [known]


def forward(delay_s: float, switches: list[Switch]) -> None:
    """Forward for ever."""
    switch_of = {port: switch for switch in switches for port in switch.sockets}
    ports = list(switch_of)
    waiting: deque[tuple[float, bytes, socket.socket]] = deque()  # in the order in which they are due
    while True:
        timeout_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for port in select.select(ports, [], [], timeout_s)[0]:
            due_s = time.monotonic() + delay_s
            with contextlib.suppress(BlockingIOError):
                for _ in range(_FRAMES_A_TURN):
                    frame = port.recv(_MAX_FRAME_BYTES)
                    for target in switch_of[port].targets(frame, port):
                        waiting.append((due_s, frame, target))
        now_s = time.monotonic()
        while waiting and waiting[0][0] <= now_s:
            _, frame, target = waiting.popleft()
            with contextlib.suppress(
                OSError
            ):  # the queue of the port is full: the frame is lost, as in any switch
                target.send(frame)


def _open_port(name: str) -> socket.socket:
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    port.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)  # frames stay as large as the sender made them
    port.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    port.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
    port.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _BUFFER_BYTES)
    port.bind((name, _ETH_P_ALL))
    port.setblocking(False)
    return port


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)  # wake in time, not some 50 us later
    switches = [Switch(ports.split(",")) for ports in sys.argv[2:]]
    print("forwarding", flush=True)
    forward(float(sys.argv[1]), switches)


if __name__ == "__main__":
    main()
