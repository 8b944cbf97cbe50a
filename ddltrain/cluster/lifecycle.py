"""Brings clusters up and takes them down, also after commands that were killed."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import ddltrain
from ddltrain.cluster import network, state
from ddltrain.cluster.probe import check_links
from ddltrain.cluster.run import write_scripts
from ddltrain.cluster.shape import Shape
from ddltrain.cluster.state import State
from ddltrain.errors import ClusterError

Say = Callable[[str], None]


def up(shape: Shape, say: Say) -> State:
    """Build a cluster and check that its links do what was asked for.

    What an `up` or `down` of this name that was killed left behind is removed first.

    Raises:
        ClusterError: not allowed or not possible here, it stands already, or its links are not as asked for; nothing is left then.
    """
    network.check_may_build()
    with state.lock():
        left = state.read(shape.name)
        if left and left.is_up and _stands(left):
            raise ClusterError(
                f"the cluster {shape.name} is up already: take it down first, or give another --name"
            )
        if left:
            say(f"removing what is left of an earlier cluster {shape.name}")
            _remove(left)
        foreign = network.existing_namespaces() & set(shape.namespaces)
        if foreign:
            raise ClusterError(
                f"namespaces {', '.join(sorted(foreign))} exist and are not known to be ours: give another --name, or delete them by "
                "`ip netns del`"
            )
        return _build(shape, say)


def down(name: str, say: Say) -> None:
    """End all processes of a cluster and remove it, whole or not. Nothing happens where there is none.

    Raises:
        ClusterError: not root, or a process does not end.
    """
    network.check_may_build()
    with state.lock():
        left = state.read(name)
        if left is None:
            say(f"there is no cluster {name}")
            return
        _remove(left)
    say(f"cluster {name} is down")


def _stands(known: State) -> bool:
    return not set(known.shape.namespaces).isdisjoint(network.existing_namespaces())


def _build(shape: Shape, say: Say) -> State:
    begun = State(shape)
    state.write(begun)
    write_scripts(shape)
    try:
        needs_delay_switch = network.build(shape)
        if needs_delay_switch:
            say(
                "this kernel cannot delay packets (no netem): a switch in user space does, at a cost of processor time"
            )
            _start_delay_switch(shape)
        measured = check_links(shape, say)
    except BaseException:
        _remove(begun)
        raise
    built = State(shape, True, needs_delay_switch, measured.goodput_bytes_s, measured.round_trip_s)
    state.write(built)
    return built


def _remove(known: State) -> None:
    network.remove(known.shape.namespaces)
    state.forget(known.shape.name)


def _start_delay_switch(shape: Shape) -> None:
    """Start it in the namespace of the switches, where `down` finds it."""
    inside = ["ip", "netns", "exec", shape.switch_namespace]
    ports = [",".join(ports) for ports in network.rack_ports(shape)]
    switch = subprocess.Popen(
        [*inside, sys.executable, "-m", "ddltrain.cluster.delay_switch", str(shape.delay_s), *ports],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd=Path(ddltrain.__file__).parents[1],
    )
    assert switch.stdout is not None
    with switch.stdout as output:
        if not output.readline():
            raise ClusterError(
                "the delay switch does not start: this kernel may lack packet sockets (CONFIG_PACKET)"
            )
