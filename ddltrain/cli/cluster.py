"""Emulate a cluster on this machine: hosts with links of a given rate, to test and measure on.

Hosts are network namespaces. It takes root, Linux and iproute2; nothing outside the cluster's own namespaces is touched.
"""

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddltrain.cluster.shape import Shape

EXAMPLES = """\
examples:
  ddltrain cluster up --hosts 4 --rate 500mbit
  ddltrain cluster up --hosts 8 --rate 200mbit --racks 2 --uplink 400mbit --delay 0.2ms
  ddltrain cluster run -- python my_program.py
  ddltrain cluster run --mpi-options "--mca coll ^han" -- ddltrain bench-allreduce
  ddltrain cluster down
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    actions = parser.add_subparsers(title="actions", dest="action", required=True, metavar="ACTION")
    _add_up(actions.add_parser("up", help="make a cluster and measure its links"))
    runs = actions.add_parser("run", help="run a command on all its ranks, under mpiexec")
    runs.add_argument(
        "--mpi-options", default="", metavar="WORDS", help="more options for mpiexec, in one string"
    )
    runs.add_argument("program", nargs=argparse.REMAINDER, metavar="-- COMMAND...", help="what to run")
    downs = actions.add_parser("down", help="end all that runs on it and remove it, also what a crash left")
    status = actions.add_parser("status", help="show the clusters of this machine")
    for action in (runs, downs, status):
        _add_name(action)


def _add_up(parser: argparse.ArgumentParser) -> None:
    from ddltrain.cluster.shape import DEFAULT_CONGESTION, DEFAULT_PACKET_BYTES

    parser.add_argument("--hosts", type=int, required=True, metavar="N", help="how many")
    parser.add_argument(
        "--rate", required=True, metavar="RATE", help="of each link in each direction, such as 500mbit"
    )
    parser.add_argument(
        "--delay", default="0ms", metavar="TIME", help="one way in a rack, such as 0.2ms (default: 0)"
    )
    parser.add_argument(
        "--racks", type=int, default=1, metavar="R", help="deal the hosts to R racks (default: 1)"
    )
    parser.add_argument("--uplink", metavar="RATE", help="of the link between a rack and the others")
    parser.add_argument(
        "--links", type=int, default=1, choices=(1, 2), help="of each host, in separate networks (default: 1)"
    )
    parser.add_argument(
        "--ranks-per-host", type=int, default=1, metavar="K", help="that `run` starts (default: 1)"
    )
    parser.add_argument(
        "--packet",
        type=int,
        default=DEFAULT_PACKET_BYTES,
        metavar="BYTES",
        help="the largest piece that a link takes at once; 64000 costs the processor less, "
        "but a link that was idle lets one piece pass at once (default: %(default)s)",
    )
    parser.add_argument(
        "--congestion",
        default=DEFAULT_CONGESTION,
        metavar="NAME",
        help="TCP's congestion control, of those that `sysctl net.ipv4.tcp_available_congestion_control` lists "
        "(default: %(default)s)",
    )
    _add_name(parser)


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--name", default="main", help="tells clusters apart that stand at once (default: main)"
    )


def run(args: argparse.Namespace) -> int:
    from ddltrain.cluster import lifecycle
    from ddltrain.cluster.run import run as run_program

    if args.action == "up":
        shape = _shape(args)
        lifecycle.up(shape, _say)
        _say(f"cluster {shape.name} is up: {shape.describe()}")
    elif args.action == "down":
        lifecycle.down(args.name, _say)
    elif args.action == "status":
        _print_status()
    else:
        program = args.program[1:] if args.program[:1] == ["--"] else args.program
        if not program:
            print("error: no command to run; give it behind --", file=sys.stderr)
            return 2
        return run_program(args.name, args.mpi_options, program)
    return 0


def _shape(args: argparse.Namespace) -> "Shape":
    from ddltrain.cluster.shape import Shape, parse_delay, parse_rate

    return Shape(
        name=args.name,
        num_hosts=args.hosts,
        rate_bits_s=parse_rate(args.rate),
        delay_s=parse_delay(args.delay),
        num_racks=args.racks,
        uplink_bits_s=parse_rate(args.uplink) if args.uplink else 0.0,
        num_links=args.links,
        ranks_per_host=args.ranks_per_host,
        packet_bytes=args.packet,
        congestion=args.congestion,
    )


def _print_status() -> None:
    from ddltrain.cluster import network, state
    from ddltrain.cluster.run import problems

    for name in state.names():
        known = state.read(name)
        if known is None:
            continue
        problem = problems(known) if known.is_up else "its `up` was cut short"
        _say(f"{name}: {known.shape.describe()}{f'; {problem}: take it down' if problem else ''}")
        _say(
            f"  a link carries {known.goodput_bytes_s / 1e6:.2f} MB/s, round trip {known.round_trip_s * 1e6:.0f} us"
        )
        for host in known.shape.hosts:
            addresses = " ".join(known.shape.address(host, link) for link in range(known.shape.num_links))
            running = len(network.processes_in([known.shape.namespace(host)]))
            _say(f"  {known.shape.hostname(host)}: {addresses}, {running} processes")
    if not state.names():
        _say("there is no cluster")


def _say(text: str) -> None:
    print(text, flush=True)
