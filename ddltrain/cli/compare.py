"""Compare runs: what each reached, where their recipes differ, and their curves in one drawing."""

import argparse
from pathlib import Path

from ddltrain.errors import RunError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument(
        "runs", nargs="+", metavar="RUN[=NAME]", help="run folders, each with a name of its own if wanted"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE.svg", help="draw accuracy and loss over epochs there"
    )


def run(args: argparse.Namespace) -> int:
    """Prints tables, and draws; returns the exit status.

    Raises:
        RunError: a folder holds no run, or there are more than can be told apart.
    """
    from rich.console import Console
    from rich.table import Column, Table

    from ddltrain.train.compare import COLORS, differences, drawing, read_run, results

    if len(args.runs) > len(COLORS):
        raise RunError(f"{len(args.runs)} runs are more than can be told apart; give at most {len(COLORS)}")
    runs = [read_run(*_path_and_name(word)) for word in args.runs]
    reached = Table(
        "run", "epochs", "top-1, last", "top-1, best", "train loss", "minutes", "images/s", box=None
    )
    for one in runs:
        reached.add_row(one.name, *results(one))
    console = Console(highlight=False, markup=False)
    console.print(reached)
    if found := differences(runs):
        table = Table(Column("recipe", no_wrap=True), *(one.name for one in runs), box=None)
        for name, values in found:
            table.add_row(name, *map(str, values))
        console.print()
        console.print(table)
    if args.out is not None:
        try:
            args.out.write_text(drawing(runs), encoding="utf-8", errors="replace")
        except OSError as error:
            raise RunError(f"{args.out} cannot be written: {error.strerror}") from None
        console.print(f"\nwrote {args.out}")
    return 0


def _path_and_name(word: str) -> tuple[Path, str | None]:
    """Folders and names may have "=" in them: the name begins behind the shortest path that is a folder."""
    parts = word.split("=")
    for index in range(1, len(parts)):
        path, name = Path("=".join(parts[:index])), "=".join(parts[index:])
        if name and path.is_dir() and not Path(word).is_dir():
            return path, name
    return Path(word), None
