"""A training job from a recipe to a report: checks first, then the trainer, then what a person wants to see."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ddltrain.comm.world import World, agreed
from ddltrain.errors import EXIT_STOPPED, RunError
from ddltrain.input.images import decode_rgb
from ddltrain.input.order import StepPlan
from ddltrain.input.store import Dataset
from ddltrain.nets import load_weights
from ddltrain.recipe import Recipe
from ddltrain.train.checkpoint import read_newest
from ddltrain.train.evaluate import Evaluation
from ddltrain.train.log import MetricsLog
from ddltrain.train.monitor import Monitor, Rank0Monitor
from ddltrain.train.position import Position
from ddltrain.train.progress import Progress
from ddltrain.train.report import REPORT_FILE, write_report
from ddltrain.train.run_folder import CHECKPOINT_FOLDER, TUNING_FILE, RunFolder, run_facts
from ddltrain.train.setup import (
    build_checked_model,
    choose_device,
    make_decoder,
    make_engine,
    open_data,
    set_threads,
)
from ddltrain.train.stop import StopRequest
from ddltrain.train.summation import choose_ways, summary
from ddltrain.train.trainer import Trainer


def check_job(recipe: Recipe, run: Path, resume: bool, num_ranks: int) -> None:
    """All that can be checked before any rank starts. Raises a DdltrainError for what a user must mend."""
    dataset = open_data(recipe)
    StepPlan(len(dataset.splits["train"]), num_ranks, recipe.train.batch_per_rank, recipe.data.last_batch)
    with RunFolder(run, recipe, resume):
        pass


def run_job(
    recipe: Recipe, run: Path, resume: bool, world: World, console: Console, should_stop: StopRequest
) -> int:
    """Train on all ranks of the world. Collective.

    Args:
        console: where rank 0 speaks.

    Returns:
        The exit status: 0, or EXIT_STOPPED after a signal.

    Raises:
        DdltrainError: what a user must mend, the same on all ranks.
    """
    with ExitStack() as stack:
        with agreed(world):
            dataset = open_data(recipe)
            device = choose_device(recipe.train.device, world)
            model = build_checked_model(recipe, len(dataset.classes))
            num_records = len(dataset.splits["train"])
            StepPlan(num_records, world.world_size, recipe.train.batch_per_rank, recipe.data.last_batch)
            notes = load_weights(model, _weights_file(recipe)) if recipe.model.weights else []
        with agreed(world):
            folder = stack.enter_context(RunFolder(run, recipe, resume)) if world.rank == 0 else None
            newest = read_newest(folder.checkpoints, console.print) if folder and resume else None
        num_threads = set_threads(recipe, world)
        engine = make_engine(recipe, world)
        decoders = {
            split: stack.enter_context(make_decoder(recipe, store, split == "train", num_threads, device))
            for split, store in dataset.splits.items()
        }
        trainer = Trainer(recipe, model, dataset, decoders, engine, device)
        state = engine.broadcast_bytes(newest, world)
        with agreed(world):
            if state is not None:
                trainer.restore(state, f"the newest checkpoint in {run}")
        facts = _facts(recipe, dataset, world)
        with agreed(world):
            monitor = (
                _start_monitor(folder, recipe, facts, dataset, trainer.position, console)
                if folder
                else Monitor()
            )
        stack.callback(monitor.close)
        choices = choose_ways(engine, world, trainer.buckets, run / TUNING_FILE)
        ways = summary(engine, trainer.buckets, choices)
        monitor.say([*notes, *_opening(recipe, facts, device, trainer.position), *ways])
        evaluation = trainer.run(monitor, should_stop)
        with agreed(world):
            if monitor.failed_save:
                raise RunError(f"{monitor.failed_save}; make room and go on with --resume")
        is_finished = trainer.position.epoch == recipe.train.epochs
        monitor.say(_closing(run, evaluation, trainer.position, is_finished))
    return 0 if is_finished else EXIT_STOPPED


def _weights_file(recipe: Recipe) -> Path:
    """What `model.weights` names; of a run folder its best checkpoint."""
    path = Path(recipe.model.weights)
    return path / CHECKPOINT_FOLDER / "best.pt" if path.is_dir() else path


def _facts(recipe: Recipe, dataset: Dataset, world: World) -> dict[str, Any]:
    from mpi4py import MPI

    hosts = sorted(set(world.comm.allgather(world.host)))
    about_data = {
        "data": str(dataset.path),
        "fingerprint": dataset.fingerprint,
        "classes": len(dataset.classes),
        **{f"{split}_images": len(store) for split, store in dataset.splits.items()},
    }
    mpi_library = MPI.Get_library_version().split(",")[0].strip()
    return run_facts(mpi_library, world.world_size, hosts, recipe, about_data)


def _start_monitor(
    folder: RunFolder,
    recipe: Recipe,
    facts: dict[str, Any],
    dataset: Dataset,
    position: Position,
    console: Console,
) -> Monitor:
    if position.epoch < recipe.train.epochs:  # else nothing more is going to be run
        folder.write_facts(recipe, {**facts, "resumed_at_step": position.step})
    progress = Progress(recipe.train.epochs, console)
    try:
        log = MetricsLog(folder.path, position.step if position.step else None, progress.message)
    except OSError as error:
        raise RunError(f"cannot write the log into {folder.path}: {error.strerror}") from None
    val = dataset.splits["val"]

    def report(evaluation: Evaluation) -> None:
        write_report(
            folder.path,
            evaluation,
            dataset.classes,
            image_of=lambda place: decode_rgb(val[place].image),
            name_of=lambda place: val[place].name,
        )

    return Rank0Monitor(
        folder.checkpoints, progress, log, recipe.log.every_steps, recipe.checkpoint.keep, report
    )


def _opening(recipe: Recipe, facts: dict[str, Any], device: torch.device, position: Position) -> list[str]:
    """What a person should know before the first step."""
    ranks, hosts = facts["ranks"], len(facts["hosts"])
    lines = [
        f"{recipe.model.name} on {facts['train_images']} images of {facts['classes']} classes ({facts['data']}), "
        f"{ranks} rank(s) on {hosts} host(s), {device.type}, global batch {facts['global_batch']}"
    ]
    if position.epoch == recipe.train.epochs:
        lines.append(f"this run has finished its {position.epoch} epochs already")
    elif position.step:
        lines.append(f"going on at step {position.step} (epoch {position.epoch + 1})")
    return lines


def _closing(run: Path, evaluation: Evaluation | None, position: Position, is_finished: bool) -> list[str]:
    """Where things are, and what to do next."""
    lines = []
    if evaluation is not None:
        lines.append(
            f"top-1 {evaluation.top1:.2f} % ({evaluation.correct1} of {evaluation.count} validation images)"
        )
    if evaluation is not None and position.best_top1 > evaluation.top1:
        lines.append(
            f"best {position.best_top1:.2f} % at step {position.best_step}: {run / CHECKPOINT_FOLDER / 'best.pt'}"
        )
    if is_finished:
        lines.append(f"report: {run / REPORT_FILE}   evaluate it: ddltrain evaluate {run}")
    else:
        lines.append(
            f"stopped at step {position.step}; all is saved, go on with the same command and --resume"
        )
    return lines
