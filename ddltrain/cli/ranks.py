"""Where the ranks of a command come from: the launcher that started us, `--ranks N`, or just this process."""

import argparse
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ddltrain.comm.world import World, exit_status, fail, launcher_size, start_world
from ddltrain.errors import CommError

if TYPE_CHECKING:
    from rich.console import Console

Job = Callable[[World, "Console"], int]


def add_ranks_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ranks",
        type=whole_number,
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
    from ddltrain.launch.job import start_here

    return start_here(ranks, command)


def run_on_ranks(job: Job) -> int:
    """Run a job as one of its ranks; the status to leave with.

    Whatever escapes ends the whole job: a traceback with the rank's number, then MPI's abort.
    """
    from ddltrain.train.progress import make_console

    world = start_world()
    try:
        status = job(world, make_console())
    except BaseException as error:  # noqa: BLE001 - the one place where they all end, sys.exit() in a user's model included
        return fail(world, error)
    return exit_status(world, status)


def whole_number(text: str) -> int:
    """The value of an option that takes 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of 1 or more")
    return int(text)
