"""Give images of a prepared data set back as files, in folders SPLIT/CLASS.

What is stored as a JPEG comes out as a JPEG with the same coefficients, small pictures that are stored without loss as PNG.
"""

import argparse
import sys
from pathlib import Path

from ddltrain.errors import EXIT_KILLED, DataError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("data", metavar="OUT", type=Path, help="the prepared data set")
    parser.add_argument(
        "keys", metavar="KEY", nargs="*", help="which: SPLIT/INDEX, such as train/0, or the name of a record"
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="where to; nothing in it is overwritten")
    parser.add_argument("--all", action="store_true", help="all images; DIR must be new or empty")


def run(args: argparse.Namespace) -> int:
    """Extracts the images and tells how many; returns the exit status."""
    from rich.console import Console

    from ddltrain.cli.counter import show_counter
    from ddltrain.input.extract import extract_all, extract_keys
    from ddltrain.input.store import open_dataset

    if bool(args.keys) == args.all:
        raise DataError("say which images: keys such as train/0 and names of records, or --all and no key")
    console = Console(highlight=False, markup=False, soft_wrap=True)
    dataset = open_dataset(args.data)
    if args.all:
        try:
            with show_counter(console, "images") as on_progress:
                count = extract_all(dataset, args.folder, on_progress)
        except KeyboardInterrupt:
            print(f"interrupted: nothing was written to {args.folder}", file=sys.stderr)
            return EXIT_KILLED
        console.print(f"{count} images in {args.folder}")
    else:
        for file in extract_keys(dataset, args.keys, args.folder):
            console.print(str(file))
    return 0
