"""How a run is going to sum its gradients: chosen before the first step, and told on request without a run."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ddltrain.comm.buckets import Buckets
from ddltrain.comm.engine import Engine
from ddltrain.comm.tuning import Choice, size_text, table
from ddltrain.comm.way import Way
from ddltrain.comm.world import World, agreed
from ddltrain.recipe import Recipe
from ddltrain.train.run_folder import TUNING_FILE
from ddltrain.train.setup import (
    build_checked_model,
    choose_device,
    make_buckets,
    make_engine,
    open_data,
    set_threads,
)
from ddltrain.train.step import EXTRAS


def choose_ways(engine: Engine, world: World, buckets: Buckets, file: Path | None) -> list[Choice]:
    """Find the quickest algorithms for the buckets, whose content is lost; `file` is that of `Engine.tune`. Collective."""
    choices: list[Choice] = []
    for wire in dict.fromkeys(() if buckets.is_local else buckets.wires):
        alike = [bucket for bucket, own in zip(buckets.flat, buckets.wires, strict=True) if own == wire]
        choices += engine.tune(world, alike, file, wire)
    buckets.zero_()
    return choices


def summary(buckets: Buckets, choices: Sequence[Choice]) -> list[str]:
    """What was measured, and one line for all buckets that are summed alike."""
    ways = _ways(buckets)
    sizes = [bucket.nbytes for bucket in buckets.flat]
    return table(choices) + [
        f"{len(group)} bucket(s) of up to {size_text(max(group))}: {words}"
        for words in dict.fromkeys(way.words() for way in ways)
        if (group := [size for size, way in zip(sizes, ways, strict=True) if way.words() == words])
    ]


def show_plan(recipe: Recipe, run: Path, world: World, console: Console) -> int:
    """Print how a run of this recipe on these ranks would sum its gradients. Nothing is trained. Collective.

    Raises:
        DdltrainError: what a user must mend, the same on all ranks.
    """
    with agreed(world):
        dataset = open_data(recipe)
        device = choose_device(recipe.train.device, world)
        model = build_checked_model(recipe, len(dataset.classes))
    set_threads(recipe, world)
    engine = make_engine(recipe, world)
    buckets = make_buckets(recipe, model.to(device), engine, len(EXTRAS))
    kept = run / TUNING_FILE
    choices = choose_ways(engine, world, buckets, kept if world.comm.bcast(kept.exists()) else None)
    if world.rank == 0:
        hosts = " + ".join(str(len(host)) for host in engine.topology.hosts)
        lines = [
            f"{world.world_size} rank(s) by host: {hosts}; {engine.place().partition(';')[0]}",
            *table(choices),
            *_bucket_table(buckets),
        ]
        for line in lines:
            console.print(line, soft_wrap=True, markup=False, highlight=False)
    return 0


def _ways(buckets: Buckets) -> list[Way]:
    return [buckets.way(index) for index in range(len(buckets.flat))]


def _bucket_table(buckets: Buckets) -> list[str]:
    """One line a bucket."""
    head = f"{'bucket':>6} {'size':>10} {'params':>6} {'algorithm':<16} {'wire':<4} {'rounds':>6} {'sent a rank':>11}  when, how"
    lines = [head]
    rows = zip(buckets.flat, buckets.num_parameters, _ways(buckets), strict=True)
    for index, (bucket, num_parameters, way) in enumerate(rows):
        sent = "-" if way.sent_bytes is None else size_text(way.sent_bytes)
        rounds = "-" if way.num_rounds is None else way.num_rounds
        when = (
            "in backward" if buckets.overlaps(index) and index < len(buckets.flat) - 1 else "after backward"
        )
        place = "in a shared window" if way.in_window else "in private memory"
        lines.append(
            f"{index:>6} {size_text(bucket.nbytes):>10} {num_parameters:>6} {way.algorithm:<16} {way.wire or 'fp32':<4} "
            f"{rounds:>6} {sent:>11}  {when}; {place}: {way.description}"
        )
    return lines
