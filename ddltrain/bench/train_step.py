"""Training steps side by side, in one run: ours, a plain PyTorch loop, and torch's DistributedDataParallel over Gloo.

    ours     the step of `ddltrain train`, with all that the recipe asks for
    plain    forward, backward, torch's fused SGD on one rank's own images; between ranks nothing is summed
    ddp      the same in DistributedDataParallel, on 2 ranks or more

All have the same network, start, images, learning rate, layout, precision and threads, turn uint8 images into the network's input in the
same way, and read the loss after each step. In each round every contender does a few steps in turn, in an order that rotates; the figure
is the median over rounds of the slowest rank's time. What disturbs a machine so disturbs all of them alike.
They share one process, so that what ours does for the memory (`train/heap.py`) serves the others too, who would not have it by themselves.
"""

import copy
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddltrain.bench import contenders
from ddltrain.comm.engine import Engine
from ddltrain.comm.world import World, agreed
from ddltrain.errors import RecipeError
from ddltrain.input.loader import Batch
from ddltrain.input.order import StepPlan
from ddltrain.optim import Schedule, set_learning_rate
from ddltrain.recipe import Recipe
from ddltrain.train.batchnorm import check_group, normalize_over_ranks
from ddltrain.train.heap import keep_freed_memory
from ddltrain.train.inputs import Normalizer
from ddltrain.train.precision import autocast, check_precision
from ddltrain.train.setup import build_checked_model, check_compiler, choose_device, schedule_of, set_threads
from ddltrain.train.step import Step

if TYPE_CHECKING:
    from rich.console import Console

    from ddltrain.train.stop import StopRequest

MIN_ROUNDS = 5
Run = Callable[[int], float]  # the number of a step -> its loss on this rank's images, or on all


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        num_steps: of each contender in a round.
    """

    num_classes: int
    num_steps: int
    num_rounds: int
    json_file: Path | None


@dataclass(frozen=True)
class Row:
    """One contender's figures; `ratio` is its time over ours, above 1 where ours is quicker."""

    contender: str
    ranks: int
    threads: int
    model: str
    image_size: int
    batch_per_rank: int
    precision: str
    step_s: float
    images_per_s: float
    ratio: float
    rounds_s: list[float]


def check_options(recipe: Recipe, options: Options, num_ranks: int) -> None:
    """Raises RecipeError for what a user must mend."""
    check_group(recipe.bn.group, num_ranks)
    if options.num_rounds < MIN_ROUNDS:
        raise RecipeError(f"-n takes {MIN_ROUNDS} or more: medians of fewer say little")
    if options.json_file and not options.json_file.resolve().parent.is_dir():
        raise RecipeError(f"{options.json_file}: its folder does not exist; make it first")


def run_bench(
    recipe: Recipe, options: Options, world: World, console: "Console", should_stop: "StopRequest"
) -> int:
    """Measure and print a table. Collective. A signal ends it after the round at hand.

    Returns:
        0.
    """
    with agreed(world):
        check_options(recipe, options, world.world_size)
        device = choose_device(recipe.train.device, world)
        check_precision(recipe.train.precision, device)
        model = build_checked_model(recipe, options.num_classes)
        check_compiler(recipe, model, device)
    set_threads(recipe, world)
    keep_freed_memory()
    rivals = _contenders(recipe, options, model, world, device)
    rounds = _time(rivals, options, world, should_stop)
    if dist.is_initialized():
        dist.destroy_process_group()
    rows = _rows(recipe, rounds, world)
    if world.rank == 0:
        console.print("\n".join(table(rows)), soft_wrap=True, markup=False)
        if options.json_file:
            options.json_file.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0


def _contenders(
    recipe: Recipe, options: Options, model: nn.Module, world: World, device: torch.device
) -> dict[str, Run]:
    """By name. Collective."""
    train = recipe.train
    layout = torch.channels_last if train.channels_last else torch.contiguous_format
    model = model.to(device, memory_format=layout)  # type: ignore[call-overload]
    batch = _batch(recipe, options.num_classes, world)
    normalize = Normalizer(recipe.data, device, train.channels_last)
    engine = Engine(world, algorithm=recipe.comm.algorithm, timeout_s=recipe.comm.timeout_s)
    own = normalize_over_ranks(copy.deepcopy(model), world, recipe.bn.group, recipe.comm.timeout_s)
    steps = StepPlan(
        batch.step_images * 1000, world.world_size, train.batch_per_rank, "keep", train.accumulate
    )
    schedule = schedule_of(recipe, steps)
    step = Step(recipe, own, normalize, schedule, engine, device)
    sizes = [train.batch_per_rank] * train.accumulate
    rivals: dict[str, Run] = {"ours": lambda number: step(batch, sizes, 0, number, False)[0]}
    rivals["plain"] = _plain_loop(recipe, copy.deepcopy(model), batch, normalize, schedule)
    if world.world_size > 1:
        contenders.gloo(world, len(engine.topology.hosts))  # makes the process group
        parallel = DistributedDataParallel(copy.deepcopy(model))
        rivals["ddp"] = _plain_loop(recipe, parallel, batch, normalize, schedule)
    return rivals


def _batch(recipe: Recipe, num_classes: int, world: World) -> Batch:
    """Noise, other on each rank."""
    generator = torch.Generator().manual_seed(world.rank)
    count, size = recipe.train.batch_per_rank * recipe.train.accumulate, recipe.data.image_size
    pixels = torch.randint(256, (count, size, size, 3), dtype=torch.uint8, generator=generator)
    labels = torch.randint(num_classes, (count,), generator=generator)
    return Batch(pixels.permute(0, 3, 1, 2), labels, np.arange(count), count * world.world_size)


def _plain_loop(
    recipe: Recipe, model: nn.Module, batch: Batch, normalize: Normalizer, schedule: Schedule
) -> Run:
    """What people write by hand, with the quickest of torch's optimizers for it.

    The rate is that of our step: backward takes longer on some values than on others, so weights must move alike.
    """
    optim, train = recipe.optim, recipe.train
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=0.0,  # until it is set
        momentum=optim.momentum,
        nesterov=optim.nesterov,
        weight_decay=optim.weight_decay,
        fused=True,
    )

    def run(number: int) -> float:
        set_learning_rate(optimizer, schedule(number))
        optimizer.zero_grad()
        for first in range(0, len(batch.labels), train.batch_per_rank):
            part = slice(first, first + train.batch_per_rank)
            images, labels = batch.images[part], batch.labels[part]
            ready = normalize(images)
            with autocast(train.precision, ready.device):
                scores = model(ready)
            loss = F.cross_entropy(
                scores.float(), labels.to(ready.device), label_smoothing=train.label_smoothing
            )
            (loss / train.accumulate).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.item()

    return run


def _time(
    rivals: dict[str, Run], options: Options, world: World, should_stop: "StopRequest"
) -> dict[str, list[float]]:
    """Seconds a step, for each contender and round; of the slowest rank. Collective."""
    names = list(rivals)
    for name in names:  # memory and caches
        rivals[name](0)
        rivals[name](1)
    rounds: dict[str, list[float]] = {name: [] for name in names}
    number = 2
    for turn in range(options.num_rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            world.comm.Barrier()
            start_s = time.perf_counter()
            for _ in range(options.num_steps):
                rivals[name](number)
                number += 1
            own_s = (time.perf_counter() - start_s) / options.num_steps
            rounds[name].append(max(world.comm.allgather(own_s)))
        if world.comm.bcast(should_stop()):
            break
    return rounds


def _rows(recipe: Recipe, rounds: dict[str, list[float]], world: World) -> list[Row]:
    """The ratio is the median of the rounds' ratios, in which both were timed one right after the other."""
    count = recipe.train.batch_per_rank * recipe.train.accumulate * world.world_size
    return [
        Row(
            contender=name,
            ranks=world.world_size,
            threads=torch.get_num_threads(),
            model=recipe.model.name,
            image_size=recipe.data.image_size,
            batch_per_rank=recipe.train.batch_per_rank,
            precision=recipe.train.precision,
            step_s=median(times_s),
            images_per_s=count / median(times_s),
            ratio=median(theirs / ours for theirs, ours in zip(times_s, rounds["ours"], strict=True)),
            rounds_s=times_s,
        )
        for name, times_s in rounds.items()
    ]


def table(rows: list[Row]) -> list[str]:
    """The rows for people."""
    first = rows[0]
    lines = [
        f"{first.model}, {first.image_size} pixels, {first.batch_per_rank} images a rank, {first.precision}, {first.ranks} rank(s) of "
        f"{first.threads} thread(s); medians of {len(first.rounds_s)} rounds of the slowest rank",
        f"{'':10}{'step (ms)':>11}{'images/s':>11}{'time / ours':>13}{'spread':>9}",
    ]
    for row in rows:
        spread = 100 * (max(row.rounds_s) - min(row.rounds_s)) / row.step_s
        lines.append(
            f"{row.contender:<10}{row.step_s * 1e3:>11.2f}{row.images_per_s:>11.1f}{row.ratio:>13.3f}{spread:>8.0f}%"
        )
    return lines
