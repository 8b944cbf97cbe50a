"""Make a data set to train on from a source of labelled images.

Every image is checked by decoding it. OUT appears at the end, whole, or not at all.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddltrain.cli.ranks import whole_number
from ddltrain.input.folders import ACCEPTED, printable

if TYPE_CHECKING:
    from rich.console import Console

_PLAIN_EVERY_S = 10.0
_SHOWN = 10
_RECIPES = {"digits": "models/resnet20-cifar/digits.toml", "cifar10": "models/resnet20-cifar/cifar10.toml"}
_FIRST_RECIPE = "models/resnet18/imagenette-128.toml"  # a start for any other source
INTERRUPTED = 130  # the exit status that shells use for Ctrl-C


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.epilog = ACCEPTED
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("source", metavar="SOURCE", help="where the images are (see below)")
    parser.add_argument("out", metavar="OUT", type=Path, help="the folder to make")
    parser.add_argument(
        "--on-bad",
        choices=("error", "skip"),
        default="error",
        help="unusable images: name them all and make nothing, or leave them out (default: error)",
    )
    parser.add_argument(
        "--val-fraction",
        type=_fraction,
        metavar="F",
        help="share of each class to set aside for val, if the source has no val (such as 0.1)",
    )
    parser.add_argument(
        "--val-list", type=Path, metavar="FILE", help="text file of `path label` lines for val"
    )
    parser.add_argument("--seed", type=int, default=0, help="draws the images of --val-fraction (default: 0)")
    parser.add_argument("--workers", type=whole_number, metavar="N", help="threads (default: one per core)")
    parser.add_argument("--force", action="store_true", help="replace OUT if it holds another data set")


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not between 0 and 1; a tenth is 0.1")
    return value


def run(args: argparse.Namespace) -> int:
    """Prepares the data set and tells about it; returns the exit status."""
    from rich.console import Console

    from ddltrain.input.prepare import PrepareOptions, prepare
    from ddltrain.input.sources import SplitOptions

    console = Console(highlight=False, markup=False, soft_wrap=True)
    options = PrepareOptions(
        split=SplitOptions(args.val_fraction, args.val_list, args.seed),
        skip_bad=args.on_bad == "skip",
        force=args.force,
        num_workers=args.workers or len(os.sched_getaffinity(0)),
    )
    try:
        with _progress(console) as on_progress:
            outcome = prepare(args.source, args.out, options, on_progress)
    except KeyboardInterrupt:
        print(f"interrupted: nothing was written to {args.out}", file=sys.stderr)
        return INTERRUPTED
    if outcome.was_up_to_date:
        console.print(f"{args.out} is up to date: made from the same source with the same options")
    _print_summary(console, outcome.description)
    recipe = _RECIPES.get(outcome.description["source"]["kind"], _FIRST_RECIPE)
    console.print(f"Next: ddltrain train {recipe} data={args.out}")
    return 0


@contextmanager
def _progress(console: "Console") -> Iterator[Callable[[str, int, int], None]]:
    """Shows the progress: a live bar on a terminal, else a plain line now and then."""
    if not console.is_terminal:
        last_s = time.monotonic()

        def print_now_and_then(split: str, done: int, total: int) -> None:
            nonlocal last_s
            if (now_s := time.monotonic()) - last_s >= _PLAIN_EVERY_S:
                last_s = now_s
                console.print(f"{split}: {done} of {total} images")

        yield print_now_and_then
        return

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:5}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        tasks: dict[str, Any] = {}

        def advance(split: str, done: int, total: int) -> None:
            if split not in tasks:
                tasks[split] = progress.add_task(split, total=total)
            progress.update(tasks[split], completed=done)

        yield advance


def _print_summary(console: "Console", description: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table("", *description["splits"])
    splits = list(description["splits"].values())
    rows: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("images", lambda facts: str(facts["images"])),
        ("classes", lambda facts: str(sum(count > 0 for count in facts["per_class"]))),
        ("images a class", lambda facts: f"{min(facts['per_class'])} to {max(facts['per_class'])}"),
        ("size on disk", lambda facts: f"{facts['file_bytes'] / 1e6:.1f} MB"),
        ("smallest image", lambda facts: "{} x {}".format(*facts["smallest"])),
        ("largest image", lambda facts: "{} x {}".format(*facts["largest"])),
        ("kept as they are", lambda facts: _counts(facts["kept"])),
        ("converted", lambda facts: _counts(facts["converted"])),
    ]
    for name, cell in rows:
        table.add_row(name, *map(cell, splits))
    console.print(table)
    for kind in ("skipped", "ignored"):
        _print_files(console, kind, description[kind])
    for warning in description["warnings"]:
        console.print(f"warning: {warning}")


def _counts(of_kind: dict[str, int]) -> str:
    return "\n".join(f"{count} {kind}" for kind, count in of_kind.items()) or "none"


def _print_files(console: "Console", kind: str, files: list[dict[str, str]]) -> None:
    if not files:
        return
    console.print(f"{kind}: {len(files)} files")
    for file in files[:_SHOWN]:
        console.print(f"  {printable(file['name'])}: {file['reason']}")
    if len(files) > _SHOWN:
        console.print(f"  ... all of them are in dataset.json under {kind}")
