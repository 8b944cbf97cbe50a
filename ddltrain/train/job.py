"""A training job from a recipe to a report: checks first, then the trainer, then what a person wants to see."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from rich.console import Console

from ddltrain.comm.stall import StallWatch
from ddltrain.comm.world import World, agreed
from ddltrain.errors import EXIT_STOPPED, RunError
from ddltrain.input._image import decode_rgb
from ddltrain.input.store import Dataset
from ddltrain.nets import load_weights
from ddltrain.recipe import Recipe
from ddltrain.train.batchnorm import check_group, normalize_over_ranks
from ddltrain.train.checkpoint import read_newest
from ddltrain.train.evaluate import Evaluation
from ddltrain.train.heap import keep_freed_memory
from ddltrain.train.log import MetricsLog
from ddltrain.train.monitor import Monitor, Rank0Monitor
from ddltrain.train.position import Position
from ddltrain.train.precision import check_precision
from ddltrain.train.progress import Progress
from ddltrain.train.report import REPORT_FILE, write_report
from ddltrain.train.run_folder import CHECKPOINT_FOLDER, TUNING_FILE, RunFolder, run_facts
from ddltrain.train.setup import (
    build_checked_model,
    check_compiler,
    check_same_model,
    choose_device,
    local_notes,
    make_engine,
    make_loaders,
    make_steps,
    open_data,
    set_threads,
)
from ddltrain.train.stop import StopRequest
from ddltrain.train.summation import choose_ways, summary
from ddltrain.train.timeline import MAX_SPANS, TIMELINE_FILE, Timeline, no_spans
from ddltrain.train.trainer import Trainer


def check_job(recipe: Recipe, run: Path, resume: bool, num_ranks: int) -> None:
    """All that can be checked before any rank starts. Raises a DdltrainError for what a user must mend."""
    make_steps(recipe, open_data(recipe), num_ranks)
    check_group(recipe.bn.group, num_ranks)
    with RunFolder(run, recipe, resume):
        pass


def run_job(
    recipe: Recipe,
    run: Path,
    resume: bool,
    world: World,
    console: Console,
    should_stop: StopRequest,
    has_timeline: bool = False,
) -> int:
    """Train on all ranks of the world. Collective.

    Args:
        console: where rank 0 speaks.
        has_timeline: write at the end what each rank did when.

    Returns:
        The exit status: 0, or EXIT_STOPPED after a signal.

    Raises:
        DdltrainError: what a user must mend, the same on all ranks.
    """
    with ExitStack() as stack:
        watch = stack.enter_context(StallWatch(world, recipe.comm.stall_report_s, recipe.comm.timeout_s))
        with agreed(world):
            dataset = open_data(recipe)
            device = choose_device(recipe.train.device, world)
            check_precision(recipe.train.precision, device)
            check_group(recipe.bn.group, world.world_size)
            model = build_checked_model(recipe, len(dataset.classes))
            check_compiler(recipe, model, device)
            make_steps(recipe, dataset, world.world_size)
            notes = load_weights(model, _weights_file(recipe)) if recipe.model.weights else []
        with agreed(world):
            folder = stack.enter_context(RunFolder(run, recipe, resume)) if world.rank == 0 else None
            newest = read_newest(folder.checkpoints, console.print) if folder and resume else None
        check_same_model(model, world)
        num_threads = set_threads(recipe, world)
        keep_freed_memory()
        engine = make_engine(recipe, world)
        watch.engine = engine
        monitor = Monitor()  # until the run has one
        notes += local_notes(recipe, engine, device)
        loaders = make_loaders(recipe, dataset, world, num_threads, device, notes.append, lambda: monitor)
        for loader in loaders.values():
            stack.enter_context(loader)
        model = normalize_over_ranks(model, world, recipe.bn.group, recipe.comm.timeout_s)
        timeline = Timeline(world, device, engine.take_spans) if has_timeline else None
        trainer = Trainer(recipe, model, dataset, loaders, engine, device, timeline or no_spans)
        state = engine.broadcast_bytes(newest, world)
        with agreed(world):
            if state is not None:
                notes += trainer.restore(state, f"the newest checkpoint in {run}")
        facts = _facts(recipe, dataset, world)
        with agreed(world):
            if folder:
                monitor = _start_monitor(folder, recipe, facts, dataset, trainer.position, console)
        stack.callback(monitor.close)
        choices = choose_ways(engine, world, trainer.buckets, run / TUNING_FILE)
        ways = summary(trainer.buckets, choices)
        monitor.say([*notes, *_opening(recipe, facts, device, trainer.position), *ways])
        if timeline is not None:
            engine.keep_spans(MAX_SPANS)
        evaluation = trainer.run(monitor, should_stop)
        if timeline is not None:
            _write_timeline(timeline, run / TIMELINE_FILE, monitor, trainer.position)
        with agreed(world):
            if monitor.failed_save:
                raise RunError(f"{monitor.failed_save}; make room and go on with --resume")
        is_finished = trainer.position.epoch == recipe.train.epochs
        monitor.say(_closing(run, evaluation, trainer.position, is_finished))
    return 0 if is_finished else EXIT_STOPPED


def _write_timeline(timeline: Timeline, file: Path, monitor: Monitor, position: Position) -> None:
    """Collective. The run is done: that its timeline cannot be written is no reason to fail."""
    try:
        breakdown = timeline.write(file)
    except OSError as error:
        monitor.say([f"WARNING: cannot write {file}: {error.strerror}"])
        return
    monitor.took(position, breakdown)
    parts = [
        f"{name} {100 * time_s / max(breakdown.total_s, 1e-9):.1f} %"
        for name, time_s in breakdown.spans_s.items()
    ]
    if breakdown.comm_s:
        exposed = 100 * breakdown.comm_exposed_s / breakdown.comm_s
        parts.append(f"of {breakdown.comm_s:.1f} s of all-reduces {exposed:.0f} % behind backward")
    monitor.say([f"timeline: {file} (open it in ui.perfetto.dev or chrome://tracing)   {', '.join(parts)}"])


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
            image_of=lambda place: Image.fromarray(decode_rgb(val[place].image)),
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
