"""Train a model from a recipe.

The run goes into a folder of its own: checkpoints, metrics.jsonl, TensorBoard events and report.html. SIGTERM or Ctrl-C finishes the
step, saves and exits with status 75; `--resume` goes on from there, or from the newest whole checkpoint after a crash."""

import argparse
from pathlib import Path

from ddltrain.cli.ranks import add_ranks_argument, run_on_ranks, start_again_on_ranks, starts_ranks
from ddltrain.train.stop import StopRequest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recipe", type=Path, metavar="RECIPE", help="a recipe (models/*/*.toml), or one of your own"
    )
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
    parser.add_argument(
        "--timeline",
        action="store_true",
        help="write what each rank did when to timeline.json, for chrome://tracing and the report",
    )
    parser.add_argument(
        "--show-schedule",
        action="store_true",
        help="print the learning rate over the run for this data set and number of ranks, and end",
    )
    parser.add_argument(
        "--show-plan",
        action="store_true",
        help="print how the gradients would be summed, bucket by bucket, and end without training",
    )
    add_ranks_argument(parser)


def run(args: argparse.Namespace) -> int:
    if args.show_schedule:
        return _show_schedule(args)
    if starts_ranks(args.ranks):
        return _start(args)
    should_stop = StopRequest()  # before the slow imports: a signal in them stops the run in order

    from rich.console import Console

    from ddltrain.comm.world import World, agreed
    from ddltrain.recipe import read_recipe
    from ddltrain.train.job import run_job
    from ddltrain.train.summation import show_plan

    def job(world: World, console: Console) -> int:
        with agreed(world):
            recipe = read_recipe(args.recipe, args.overrides)
        if args.show_plan:
            return show_plan(recipe, _folder(args), world, console)
        return run_job(recipe, _folder(args), args.resume, world, console, should_stop, args.timeline)

    return run_on_ranks(job)


def _start(args: argparse.Namespace) -> int:
    from ddltrain.recipe import read_recipe

    recipe = read_recipe(args.recipe, args.overrides)  # quick, so that a slip shows at once

    from ddltrain.train.job import check_job

    flags = ["--run", str(_folder(args))]
    flags += ["--resume"] if args.resume else []
    flags += ["--timeline"] if args.timeline else []
    if args.show_plan:
        flags += ["--show-plan"]
    else:
        check_job(recipe, _folder(args), args.resume, args.ranks)
    return start_again_on_ranks(args.ranks, ["train", str(args.recipe), *args.overrides, *flags])


def _folder(args: argparse.Namespace) -> Path:
    """`--run`, else runs/MODEL-RECIPE after the recipe's folder and name."""
    recipe: Path = args.recipe
    folder: Path | None = args.run_folder
    return folder or Path("runs") / f"{recipe.resolve().parent.name}-{recipe.stem}"


def _show_schedule(args: argparse.Namespace) -> int:
    from ddltrain.recipe import read_recipe

    recipe = read_recipe(args.recipe, args.overrides)

    from ddltrain.optim.show import plot, table
    from ddltrain.train.setup import make_steps, open_data, schedule_of

    num_ranks = args.ranks or 1
    steps = make_steps(recipe, open_data(recipe), num_ranks)
    schedule = schedule_of(recipe, steps)
    print(
        f"{recipe.schedule.kind}: peak rate {schedule.peak_lr:.6g} at a global batch of {steps.global_batch} on {num_ranks} rank(s), "
        f"{steps.num_steps} steps an epoch, {schedule.num_steps} in all"
    )
    print("\n".join([*table(schedule), "", *plot(schedule)]))
    return 0
