"""Make a data set to train on from a source of labelled images.

Every image is decoded, packed and proven to decode to the same pixels. OUT appears at the end, whole, or not at all; killed, the
same command goes on where it stopped.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddltrain.cli.ranks import whole_number
from ddltrain.errors import EXIT_KILLED
from ddltrain.input.folders import ACCEPTED, KINDS, printable
from ddltrain.input.record import SHARD_BYTES

if TYPE_CHECKING:
    from rich.console import Console

_SHOWN = 10
_SHOWN_ODD = 3
_RECIPES = {"digits": "models/resnet20-cifar/digits.toml", "cifar10": "models/resnet20-cifar/cifar10.toml"}
_FIRST_RECIPE = "models/resnet18/imagenette-128.toml"  # a start for any other source
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_MIN_SHARD_BYTES = 1 << 20
_MAX_SIDE = 65535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.epilog = ACCEPTED
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("source", metavar="SOURCE", help="where the images are (see below)")
    parser.add_argument("out", metavar="OUT", type=Path, help="the folder to make")
    parser.add_argument(
        "--as",
        dest="kind",
        choices=KINDS,
        help="what SOURCE is, where it cannot be seen (class folders of ImageNet-22k)",
    )
    parser.add_argument(
        "--size",
        type=_size,
        default=("keep", 0),
        metavar="S",
        help="keep, or shrink larger images: shorter=256 or longer=500 pixels for that side (default: keep)",
    )
    parser.add_argument(
        "--quality",
        type=_quality,
        metavar="Q",
        help="JPEG quality of images that are encoded anew, 1 to 100 (default: 90 if shrunk, else 95); JPEGs that fit keep "
        "their own",
    )
    parser.add_argument(
        "--shard-size",
        type=_bytes,
        default=SHARD_BYTES,
        metavar="BYTES",
        help="bound of each file of records, such as 256M (default: 1G)",
    )
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


def _size(text: str) -> tuple[str, int]:
    side, _, pixels = text.partition("=")
    if text == "keep":
        return "keep", 0
    if side not in ("shorter", "longer") or not pixels.isdecimal() or not 1 <= int(pixels) <= _MAX_SIDE:
        raise argparse.ArgumentTypeError(f"'{text}' is neither keep nor such as shorter=256 or longer=500")
    return side, int(pixels)


def _quality(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 1 to 100")
    return int(text)


def _bytes(text: str) -> int:
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in _UNITS else (text, "")
    if not number.isdecimal() or (size := int(number) * _UNITS.get(unit, 1)) < _MIN_SHARD_BYTES:
        raise argparse.ArgumentTypeError(f"'{text}' is not a size of at least 1M, such as 256M or 1G")
    return size


def run(args: argparse.Namespace) -> int:
    """Prepares the data set and tells about it; returns the exit status."""
    from rich.console import Console

    from ddltrain.cli.counter import show_counter
    from ddltrain.input.build import PrepareOptions
    from ddltrain.input.packing import Shape
    from ddltrain.input.prepare import prepare
    from ddltrain.input.publish import has_leftover
    from ddltrain.input.splits import SplitOptions

    console = Console(highlight=False, markup=False, soft_wrap=True)
    side, pixels = args.size
    options = PrepareOptions(
        split=SplitOptions(args.val_fraction, args.val_list, args.seed),
        kind=args.kind,
        shape=Shape(side, pixels, args.quality),
        shard_bytes=args.shard_size,
        skip_bad=args.on_bad == "skip",
        force=args.force,
        num_workers=args.workers or len(os.sched_getaffinity(0)),
    )
    try:
        with show_counter(console, "images") as on_progress:
            outcome = prepare(args.source, args.out, options, on_progress)
    except KeyboardInterrupt:
        rest = "; the same command goes on where this one stopped" if has_leftover(args.out) else ""
        print(f"interrupted: nothing was written to {args.out}{rest}", file=sys.stderr)
        return EXIT_KILLED
    if outcome.was_up_to_date:
        console.print(f"{args.out} is up to date: made from the same source with the same options")
    _print_summary(console, outcome.description)
    recipe = _RECIPES.get(outcome.description["source"]["kind"], _FIRST_RECIPE)
    console.print(f"Next: ddltrain train {recipe} data={args.out}")
    return 0


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
        ("files were", lambda facts: _counts(facts["kinds"])),
        ("stored as", lambda facts: _counts(facts["stored"])),
    ]
    for name, cell in rows:
        table.add_row(name, *map(cell, splits))
    console.print(table)
    for split, facts in description["splits"].items():
        for note, odd in facts["odd"].items():
            names = [printable(name) for name in odd["names"][:_SHOWN_ODD]]
            more = ", ..." if odd["images"] > len(names) else ""
            console.print(f"odd in {split}: {odd['images']} {note}: {', '.join(names)}{more}")
    skipped = description["skipped"]
    faults = Counter(bad["fault"] for bad in skipped)
    _print_files(
        console, "skipped", skipped, len(skipped), ", ".join(f"{n} {fault}" for fault, n in faults.items())
    )
    _print_files(console, "ignored", description["ignored"], description["num_ignored"], "no images")
    for warning in description["warnings"]:
        console.print(f"warning: {warning}")


def _counts(of_kind: dict[str, int]) -> str:
    return "\n".join(f"{count} {kind}" for kind, count in of_kind.items()) or "none"


def _print_files(console: "Console", kind: str, files: list[dict[str, str]], count: int, why: str) -> None:
    if not count:
        return
    console.print(f"{kind}: {count} files ({why})")
    for file in files[:_SHOWN]:
        console.print(f"  {printable(file['name'])}: {file['reason']}")
    if count > _SHOWN:
        console.print("  ... all of them are in OUT/report.txt")
