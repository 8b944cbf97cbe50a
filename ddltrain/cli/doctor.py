"""Look at this machine: versions, MPI, processor, memory, network, and what stands in the way of training.

Under mpiexec, or with --ranks N, it also measures the ways between ranks. The status is 1 where training is not possible."""

import argparse
import dataclasses
import json
import os
from typing import TYPE_CHECKING

from ddltrain.cli.ranks import add_ranks_argument, run_on_ranks, start_again_on_ranks, starts_ranks

if TYPE_CHECKING:
    from rich.console import Console

    from ddltrain.comm.world import World
    from ddltrain.doctor.facts import Facts
    from ddltrain.doctor.links import Link


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")
    add_ranks_argument(parser)


def run(args: argparse.Namespace) -> int:
    from ddltrain.comm.world import launcher_size

    if starts_ranks(args.ranks):
        return start_again_on_ranks(args.ranks, ["doctor", *(["--json"] if args.json else [])])
    if launcher_size(os.environ):
        return _run_as_rank(args.json)

    from ddltrain.doctor.checks import try_mpi
    from ddltrain.doctor.facts import gather_facts

    facts = gather_facts()
    return _show(args.json, facts, try_mpi() if facts.mpi else "!there is none", [])


def _run_as_rank(as_json: bool) -> int:
    from ddltrain.doctor.checks import LEVELS
    from ddltrain.doctor.facts import gather_facts
    from ddltrain.doctor.links import measure_links

    def job(world: "World", console: "Console") -> int:
        from mpi4py import MPI  # running by now

        links = measure_links(world)
        level = LEVELS[MPI.Query_thread()]
        status = _show(as_json, gather_facts(), level, links) if world.rank == 0 else 0
        return int(world.comm.bcast(status))

    return run_on_ranks(job)


def _show(as_json: bool, facts: "Facts", level: str, links: "list[Link]") -> int:
    from ddltrain.doctor.checks import find_problems, mpiexec_version
    from ddltrain.doctor.facts import facts_to_dict
    from ddltrain.doctor.page import page

    mpiexec = mpiexec_version()
    problems = find_problems(facts, mpiexec[1], level)
    if as_json:
        entries = {
            **facts_to_dict(facts),
            "mpiexec": mpiexec[0],
            "mpiexec_version": mpiexec[1],
            "thread_level": level.lstrip("!"),
            "links": [dataclasses.asdict(link) for link in links],
            "problems": [dataclasses.asdict(problem) for problem in problems],
        }
        print(json.dumps(entries, indent=2))
    else:
        print("\n".join(page(facts, mpiexec, level, links, problems)), flush=True)
    return int(any(problem.prevents for problem in problems))
