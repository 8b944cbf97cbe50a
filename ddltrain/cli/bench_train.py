"""Time training steps side by side: ours, a plain PyTorch loop, and DistributedDataParallel over Gloo.

Network, batch, image size, precision and threads are the recipe's; images are noise in memory, so that no loader has a part in it.
"time / ours" above 1 means that our step is the quicker one.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ddltrain.cli.ranks import (
    add_ranks_argument,
    run_on_ranks,
    start_again_on_ranks,
    starts_ranks,
    whole_number,
)
from ddltrain.train.stop import StopRequest

if TYPE_CHECKING:
    from rich.console import Console

    from ddltrain.comm.world import World


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recipe", type=Path, metavar="RECIPE", help="a recipe (models/*/*.toml), or one of your own"
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="override a recipe's value, such as train.batch_per_rank=16",
    )
    parser.add_argument("--classes", type=whole_number, default=1000, metavar="N", help="(default: 1000)")
    parser.add_argument(
        "-s",
        dest="steps",
        type=whole_number,
        default=3,
        metavar="N",
        help="steps of each in a round (default: 3)",
    )
    parser.add_argument(
        "-n",
        dest="rounds",
        type=whole_number,
        default=9,
        metavar="N",
        help="rounds, 5 or more (default: 9)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    add_ranks_argument(parser)


def run(args: argparse.Namespace) -> int:
    from_here = starts_ranks(args.ranks)

    from ddltrain.bench.train_step import Options, check_options, run_bench
    from ddltrain.recipe import read_recipe

    options = Options(args.classes, args.steps, args.rounds, args.json)
    recipe = read_recipe(args.recipe, args.overrides)
    if from_here:
        check_options(recipe, options, args.ranks)
        words = ["--classes", str(args.classes), "-s", str(args.steps), "-n", str(args.rounds)]
        words += ["--json", str(args.json)] if args.json else []
        return start_again_on_ranks(args.ranks, ["bench-train", str(args.recipe), *args.overrides, *words])
    should_stop = StopRequest()

    def job(world: "World", console: "Console") -> int:
        return run_bench(recipe, options, world, console, should_stop)

    return run_on_ranks(job)
