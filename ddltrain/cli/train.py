"""Train a model from a recipe.

The run goes into a folder of its own: checkpoints, metrics.jsonl, TensorBoard events and report.html. SIGTERM or Ctrl-C finishes the
step, saves and exits with status 75; `--resume` goes on from there, or from the newest whole checkpoint after a crash."""

import argparse
from pathlib import Path

from ddltrain.cli.ranks import add_ranks_argument, run_on_ranks, start_again_on_ranks, starts_ranks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", type=Path, help="a recipe (models/*/*.toml), or one of your own")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="override a recipe's value, such as train.epochs=3; data=PATH names the prepared data set",
    )
    parser.add_argument(
        "--run",
        type=Path,
        metavar="FOLDER",
        dest="run_folder",
        help="the run folder (default: runs/MODEL-RECIPE)",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on from the newest checkpoint in the run folder; start where there is none",
    )
    add_ranks_argument(parser)


def run(args: argparse.Namespace) -> int:
    from ddltrain.recipe import read_recipe

    from_here = starts_ranks(args.ranks)
    recipe = read_recipe(args.recipe, args.overrides)

    from ddltrain.train.job import check_job, run_job
    from ddltrain.train.run_folder import default_run_folder

    folder = args.run_folder or default_run_folder(args.recipe)
    if from_here:
        check_job(recipe, folder, args.resume, args.ranks)
        flags = ["--run", str(folder), *(["--resume"] if args.resume else [])]
        return start_again_on_ranks(args.ranks, ["train", str(args.recipe), *args.overrides, *flags])
    return run_on_ranks(
        lambda world, console, should_stop: run_job(recipe, folder, args.resume, world, console, should_stop)
    )
