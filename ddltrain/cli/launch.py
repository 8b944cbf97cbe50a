"""Start a command on many hosts: look at them first, then start the ranks, and again after a fault if wanted.

The hosts come from --hosts, --hostfile, an emulated cluster, or Slurm's allocation; --ranks N is this host alone."""

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from ddltrain.cli.ranks import whole_number

if TYPE_CHECKING:
    from ddltrain.launch.place import Place

EXAMPLES = """\
examples:
  ddltrain launch --hosts a:4,b:4 -- train models/resnet50/goyal-2017.toml data=/data/imagenet
  ddltrain launch --hostfile hosts.txt --max-restarts 3 --min-ranks 8 -- train RECIPE data=PATH
  ddltrain launch -- train RECIPE data=PATH           in a Slurm job script
  ddltrain launch --cluster main -- doctor            on an emulated cluster
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--hosts", metavar="A:4,B:4", help="hosts and their numbers of ranks")
    where.add_argument(
        "--hostfile", type=Path, metavar="FILE", help="lines such as: node1 slots=4 group=rack1"
    )
    where.add_argument("--ranks", type=whole_number, metavar="N", help="N ranks on this host")
    where.add_argument("--cluster", metavar="NAME", help="the hosts of an emulated cluster that is up")
    parser.add_argument(
        "--topology", metavar="XxYxZ", help="X ranks a host, Y near hosts a group, Z groups; checked"
    )
    parser.add_argument(
        "--agent", metavar="CMD", help="runs a command on a host, as AGENT HOST COMMAND (default: ssh)"
    )
    parser.add_argument("--interface", default="", metavar="NAME", help="of the network that MPI is to use")
    parser.add_argument(
        "--bind", action="store_true", help="give each rank an equal share of cores of its own"
    )
    parser.add_argument(
        "--mpi-options", default="", metavar="WORDS", help="more options for mpiexec or srun, in one string"
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="R",
        help="after a fault go on from the last checkpoint, so often (default: 0)",
    )
    parser.add_argument(
        "--min-ranks",
        type=int,
        default=0,
        metavar="M",
        help="go on without lost hosts while M ranks are left",
    )
    parser.add_argument("--dry-run", action="store_true", help="look at the hosts and print the command only")
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="-- COMMAND...", help="what the ranks run"
    )


def run(args: argparse.Namespace) -> int:
    from ddltrain.launch.job import Options, launch
    from ddltrain.launch.program import parse_program

    program = parse_program(args.program[1:] if args.program[:1] == ["--"] else args.program)
    options = Options(
        args.dry_run,
        args.bind,
        args.interface,
        tuple(shlex.split(args.mpi_options)),
        max(0, args.max_restarts),
        max(0, args.min_ranks),
    )
    return launch(_place(args), program, options)


def _place(args: argparse.Namespace) -> "Place":
    import os
    import socket

    from ddltrain.errors import LaunchError
    from ddltrain.launch.hosts import Host, arrange, parse_hosts, parse_topology, read_hostfile, slurm_hosts
    from ddltrain.launch.place import SSH, Place, cluster_place

    topology = parse_topology(args.topology) if args.topology else None
    if args.cluster:
        place = cluster_place(args.cluster, topology[0] if topology else 0)
        return place.with_hosts(arrange(place.hosts, topology))
    agent = tuple(shlex.split(args.agent)) if args.agent else SSH
    if args.ranks:
        return Place(tuple(arrange([Host(socket.gethostname(), args.ranks)], topology)), agent)
    if args.hosts or args.hostfile:
        hosts = parse_hosts(args.hosts) if args.hosts else read_hostfile(args.hostfile)
        return Place(tuple(arrange(hosts, topology)), agent)
    hosts = slurm_hosts(os.environ)
    if not hosts:
        raise LaunchError(
            "no hosts: give --hosts, --hostfile, --cluster or --ranks, or start inside a Slurm job"
        )
    return Place(tuple(arrange(hosts, topology)), agent, is_slurm=True)
