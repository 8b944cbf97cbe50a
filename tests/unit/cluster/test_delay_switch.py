import socket

from ddltrain.cluster.delay_switch import Switch

HEADER = bytes(10)
A, B, C, ALL = (bytes([number]) * 6 for number in (2, 4, 6, 255))


def frame(target: bytes, source: bytes) -> bytes:
    return HEADER + target + source + b"\x08\x00payload"


def test_it_floods_until_it_knows_who_sits_where() -> None:
    switch = Switch([])
    switch.sockets = ports = [socket.socket() for _ in range(3)]
    try:
        assert switch.targets(frame(ALL, A), ports[0]) == ports[1:]
        assert switch.targets(frame(A, B), ports[1]) == [ports[0]]
        assert switch.targets(frame(C, A), ports[0]) == ports[1:]
        assert switch.targets(frame(B, A), ports[0]) == [ports[1]]
        assert switch.targets(frame(A, C), ports[0]) == []  # both behind the same port
    finally:
        for port in ports:
            port.close()
