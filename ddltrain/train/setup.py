"""What training and evaluation need before their first batch: device, threads, model and data."""

import copy
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ddltrain.comm.buckets import Buckets
from ddltrain.comm.engine import Engine
from ddltrain.comm.local_sums import LocalSums, obstacle
from ddltrain.comm.waits import waiting
from ddltrain.comm.world import World
from ddltrain.errors import DataError, RecipeError
from ddltrain.input.decode import Sampling, eval_sampling, train_sampling
from ddltrain.input.loader import Loader, eval_loader, train_loader
from ddltrain.input.order import StepPlan
from ddltrain.input.store import Dataset, Store, open_dataset
from ddltrain.nets import build_model
from ddltrain.optim import Schedule, make_schedule
from ddltrain.recipe import Recipe
from ddltrain.train.inputs import output_for
from ddltrain.train.monitor import Monitor


def open_data(recipe: Recipe) -> Dataset:
    """The data set that the recipe names.

    Raises:
        DataError: none named, none there, damaged, or without images.
    """
    if not recipe.data.path:
        raise DataError(
            "no data set given; add data=PATH, the folder that `ddltrain prepare SOURCE PATH` wrote"
        )
    dataset = open_dataset(Path(recipe.data.path))
    for split in ("train", "val"):
        if split not in dataset.splits or not len(dataset.splits[split]):
            raise DataError(
                f"the data set {recipe.data.path} has no {split} images; prepare it again with some"
            )
    return dataset


def make_steps(recipe: Recipe, dataset: Dataset, world_size: int) -> StepPlan:
    """How an epoch is cut into steps on so many ranks.

    Raises:
        DataError: the global batch is larger than the training set.
    """
    train, num_records = recipe.train, len(dataset.splits["train"])
    return StepPlan(
        num_records,
        world_size,
        train.batch_per_rank,
        recipe.data.last_batch,
        train.accumulate,
        train.global_batch,
    )


def schedule_of(recipe: Recipe, steps: StepPlan) -> Schedule:
    """The learning rate of a run; its peak follows the global batch (the linear scaling rule)."""
    peak_lr = recipe.optim.lr_base * steps.global_batch / recipe.optim.lr_base_batch
    return make_schedule(recipe.schedule, peak_lr, recipe.train.epochs, steps.num_steps)


def choose_device(name: str, world: World) -> torch.device:
    """One device a rank: a GPU where there is one for each rank of the host, unless the recipe says otherwise.

    Raises:
        RecipeError: "cuda" without enough of them.
    """
    num_gpus = torch.cuda.device_count()
    if name == "cuda" and num_gpus < world.local_size:
        raise RecipeError(
            f'train.device = "cuda" needs one GPU for each of the {world.local_size} ranks on {world.host}, which has {num_gpus}; '
            'start fewer ranks or set train.device="cpu"'
        )
    if name == "cpu" or num_gpus < world.local_size:
        return torch.device("cpu")
    torch.cuda.set_device(world.local_rank)
    return torch.device("cuda", world.local_rank)


def set_threads(recipe: Recipe, world: World) -> int:
    """Share the cores of the host among its ranks. Collective.

    Returns:
        The number of decode threads of this rank.
    """
    own = os.sched_getaffinity(0)
    with waiting("a count of the cores"):
        cores_of_ranks: list[tuple[str, set[int]]] = world.comm.allgather((world.host, own))
    cores = len(set().union(*(cores for host, cores in cores_of_ranks if host == world.host)))
    # A launcher may have bound each rank to cores of its own.
    share = max(1, min(len(own), cores // world.local_size))
    threads = recipe.train.threads or share
    torch.set_num_threads(threads)
    if world.rank == 0 and threads * world.local_size > cores:
        print(
            f"warning: {world.local_size} ranks x {threads} threads on {cores} cores of {world.host}; they will wait for each other "
            "(fewer ranks are quicker)",
            file=sys.stderr,
            flush=True,
        )
    return recipe.data.threads or share


def make_engine(recipe: Recipe, world: World) -> Engine:
    """What sums the gradients. Collective."""
    comm = recipe.comm
    return Engine(
        world, algorithm=comm.algorithm, timeout_s=comm.timeout_s, check=comm.check, verify=comm.verify
    )


def make_buckets(recipe: Recipe, model: nn.Module, engine: Engine, num_extras: int) -> Buckets:
    """Buckets for the gradients of `model`. Collective."""
    wire = None if recipe.comm.wire == "fp32" else recipe.comm.wire
    device = next(model.parameters()).device
    uses_local = _wants_local(recipe, device) and not obstacle(engine, device)
    agree = torch.tensor([int(uses_local)])
    local = None
    if engine.allreduce_(agree, op="min").item():
        local = LocalSums(engine, device, recipe.comm.timeout_s)
    return Buckets(
        model,
        engine,
        int(recipe.comm.bucket_mib * (1 << 20)),
        num_extras,
        wire,
        local,
        recipe.comm.error_feedback,
    )


def local_notes(recipe: Recipe, engine: Engine, device: torch.device) -> list[str]:
    """What the user should know where ranks of a host could have summed by torch.distributed and do not."""
    reason = obstacle(engine, device)
    if not reason or not _wants_local(recipe, device) or engine.world_size == 1:
        return []
    return [f"gradients are summed by our engine alone, without torch.distributed inside hosts: {reason}"]


def _wants_local(recipe: Recipe, device: torch.device) -> bool:
    """Whether the ranks of a host sum by torch.distributed, where they can: "auto" is for GPUs, and for the engine's own choice."""
    comm = recipe.comm
    if comm.local != "auto":
        return comm.local == "torch"
    return device.type == "cuda" and comm.algorithm == "auto" and not comm.check


def build_checked_model(recipe: Recipe, num_classes: int) -> nn.Module:
    """The recipe's model with weights drawn from its seed, tried on one picture.

    Raises:
        RecipeError: no such model, or it does not give a score for each class.
    """
    torch.manual_seed(recipe.train.seed)
    model = build_model(recipe.model.name, num_classes, recipe.model.zero_init_residual).eval()
    size = recipe.data.image_size
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters or any(parameter.dtype != torch.float32 for parameter in parameters):
        raise RecipeError(
            f'model.name = "{recipe.model.name}" must have parameters to train, all of them float32'
        )
    try:
        with torch.no_grad():
            scores = model(torch.zeros(1, 3, size, size))
    except Exception as error:
        raise RecipeError(
            f'model.name = "{recipe.model.name}" fails on images of 3x{size}x{size}: {error}'
        ) from error
    if not isinstance(scores, torch.Tensor) or scores.shape != (1, num_classes):
        shape = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
        raise RecipeError(
            f'model.name = "{recipe.model.name}" must give scores of shape [images, {num_classes}]; for one image it gives {shape}'
        )
    return model


def check_same_model(model: nn.Module, world: World) -> None:
    """Refuse models that differ between ranks, whose all-reduces would not fit each other. Collective.

    Raises:
        RecipeError: the same on all ranks.
    """
    own = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in model.state_dict().items()]
    with waiting("a comparison of the models"):
        everyones: list[list[tuple[str, tuple[int, ...], str]]] = world.comm.allgather(own)
    for rank, others in enumerate(everyones):
        if others == everyones[0]:
            continue
        here, there = dict.fromkeys(everyones[0]), dict.fromkeys(others)
        odd = next(
            (entry for entry in (*here, *there) if (entry in here) != (entry in there)), ("order", (), "")
        )
        error = RecipeError(
            f"the model of rank {rank} is not that of rank 0 (they differ in {odd[0]} {odd[1]}); model.name must give the same on all ranks"
        )
        error.on_all_ranks = True
        raise error


def check_compiler(recipe: Recipe, model: nn.Module, device: torch.device) -> None:
    """Try one step of the compiled model, where the recipe asks for that; the model stays as it is.

    Raises:
        RecipeError: torch.compile does not work for this model or on this machine.
    """
    if not recipe.train.compile:
        return
    size = recipe.data.image_size
    try:
        trial = copy.deepcopy(model).to(device).train()
        torch.compile(trial)(torch.zeros(2, 3, size, size, device=device)).sum().backward()
    except Exception as error:  # compilers and models fail in ways of their own
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        raise RecipeError(
            f"train.compile = true, but torch cannot compile the model here ({type(error).__name__}: {reason}); "
            "set train.compile=false"
        ) from error


def make_loaders(
    recipe: Recipe,
    dataset: Dataset,
    world: World,
    num_threads: int,
    device: torch.device,
    say: Callable[[str], None] = lambda _: None,
    monitor: Callable[[], Monitor] = Monitor,
    ranks_per_host: int = 0,
) -> dict[str, Loader]:
    """Loaders of the splits "train" and "val", to be left as contexts. Collective.

    Args:
        say: told how much memory each way to hold the images needs.
        monitor: whom to tell about loading and exchanges.
        ranks_per_host: if not 0, so many ranks of a host count as a host of their own.

    Raises:
        DataError: the images do not fit in memory; the same on all ranks.
    """
    val = dataset.splits["val"]
    train = train_loader(
        dataset.splits["train"],
        _sampling(recipe, device, is_training=True),
        recipe.train.batch_per_rank,
        world=world,
        seed=recipe.train.seed,
        last_batch=recipe.data.last_batch,
        accumulate=recipe.train.accumulate,
        global_batch=recipe.train.global_batch,
        groups=recipe.data.groups,
        num_threads=num_threads,
        pin=device.type == "cuda",
        dealt_bytes=int(val.sizes.sum(dtype=np.int64)),
        say=say,
        progress=lambda *news: monitor().loading(*news),
        report=lambda times: monitor().exchanged(times),
        ranks_per_host=ranks_per_host,
    )
    return {"train": train, "val": make_eval_loader(recipe, val, world, num_threads, device)}


def make_eval_loader(
    recipe: Recipe, store: Store, world: World, num_threads: int, device: torch.device
) -> Loader:
    """A loader of the images to evaluate on, to be left as a context. Collective; raises as `make_loaders`."""
    sampling = _sampling(recipe, device, is_training=False)
    return eval_loader(store, sampling, world=world, num_threads=num_threads, pin=device.type == "cuda")


def _sampling(recipe: Recipe, device: torch.device, is_training: bool) -> Sampling:
    make = train_sampling if is_training else eval_sampling
    return make(recipe.data, output_for(device, recipe.data), recipe.train.channels_last)
