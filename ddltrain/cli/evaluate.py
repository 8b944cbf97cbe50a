"""Evaluate a trained model: top-1 and top-5, each image counted once on any number of ranks."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ddltrain.cli.ranks import add_ranks_argument, run_on_ranks, start_again_on_ranks, starts_ranks
from ddltrain.train.stop import StopRequest

if TYPE_CHECKING:
    from ddltrain.train.evaluation_job import EvaluationJob


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        type=Path,
        metavar="RUN|CHECKPOINT",
        help="a run folder (its newest checkpoint), or a checkpoint such as RUN/checkpoints/best.pt",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="override a value of the run's recipe; data=PATH evaluates on another prepared data set of the same classes",
    )
    parser.add_argument(
        "--split", choices=("val", "train"), default="val", help="which images (default: val)"
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write top1, top5 (percent), correct1, correct5 and count there",
    )
    parser.add_argument(
        "--ema",
        action="store_true",
        help="evaluate the average of the weights, of a run with train.ema",
    )
    add_ranks_argument(parser)


def run(args: argparse.Namespace) -> int:
    if starts_ranks(args.ranks):
        _job(args).check()
        flags = ["--split", args.split, *(["--json", str(args.json)] if args.json else [])]
        flags += ["--ema"] if args.ema else []
        return start_again_on_ranks(args.ranks, ["evaluate", str(args.model), *args.overrides, *flags])
    should_stop = StopRequest()  # before the slow imports
    job = _job(args)
    return run_on_ranks(lambda world, console: job.run(world, console, should_stop))


def _job(args: argparse.Namespace) -> "EvaluationJob":
    from ddltrain.train.evaluation_job import EvaluationJob

    return EvaluationJob(args.model, args.overrides, args.split, args.json, args.ema)
