"""Check a prepared data set: every file, every checksum, every record down to its pixels.

Says what is wrong, a line each. Exit status: 0 if all is well, 1 if not, 2 if there is no data set.
"""

import argparse
import os
import sys
from pathlib import Path

from ddltrain.cli.ranks import whole_number
from ddltrain.errors import EXIT_KILLED

_SHOWN = 50
DAMAGED = 1  # the exit status for a data set that is not what it should be


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("data", metavar="OUT", type=Path, help="the prepared data set")
    parser.add_argument("--workers", type=whole_number, metavar="N", help="threads (default: one per core)")


def run(args: argparse.Namespace) -> int:
    """Checks the data set and tells about it; returns the exit status."""
    from rich.console import Console

    from ddltrain.cli.counter import show_counter
    from ddltrain.input.verify import verify

    console = Console(highlight=False, markup=False, soft_wrap=True)
    try:
        with show_counter(console, "shards") as on_progress:
            problems = verify(args.data, args.workers or len(os.sched_getaffinity(0)), on_progress)
    except KeyboardInterrupt:
        print("interrupted: not all was checked", file=sys.stderr)
        return EXIT_KILLED
    for problem in problems[:_SHOWN]:
        console.print(problem)
    if len(problems) > _SHOWN:
        console.print(f"... and {len(problems) - _SHOWN} more")
    if problems:
        console.print(
            f"{args.data}: NOT as it should be; prepare it again, or copy it again from where it came"
        )
        return DAMAGED
    console.print(f"{args.data}: all is well")
    return 0
