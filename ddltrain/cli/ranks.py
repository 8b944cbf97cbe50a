"""Where the ranks of a command come from: the launcher that started us, `--ranks N`, or just this process."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ddltrain.comm.launch import start_ranks
from ddltrain.comm.world import World, exit_status, fail, launcher_size, start_world
from ddltrain.errors import CommError

if TYPE_CHECKING:
    from rich.console import Console

    from ddltrain.train.stop import StopRequest

Job = Callable[[World, "Console", "StopRequest"], int]


def add_ranks_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ranks",
        type=_positive,
        metavar="N",
        help="start N ranks on this host (default: the ranks that mpiexec or srun gives, else 1)",
    )


def starts_ranks(ranks: int | None) -> bool:
    """Whether this process has to start the ranks, because it is none itself.

    Raises:
        CommError: `--ranks` under a launcher, which has started the ranks already.
    """
    announced = launcher_size(os.environ)
    if ranks and announced and announced[1] != "SLURM_NTASKS":
        raise CommError(
            f"--ranks {ranks} under a launcher that started {announced[0]} ranks ({announced[1]}); leave --ranks out"
        )
    return ranks is not None and ranks > 1


def start_again_on_ranks(ranks: int, command: Sequence[str]) -> int:
    """Run ``ddltrain COMMAND`` on `ranks` ranks of this host; its exit status."""
    return start_ranks(ranks, [sys.executable, "-m", "ddltrain", *command])


def run_on_ranks(job: Job) -> int:
    """Run a job as one of its ranks; the status to leave with.

    Whatever escapes ends the whole job: a traceback with the rank's number, then MPI's abort.
    """
    from ddltrain.train.progress import make_console
    from ddltrain.train.stop import StopRequest

    should_stop = StopRequest()
    world = start_world()
    try:
        status = job(world, make_console(), should_stop)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the one place where they all end
        return fail(world, error)
    return exit_status(world, status)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value
