"""What training and evaluation need before their first batch: device, threads, model and data."""

import os
import sys
from pathlib import Path

import torch
from torch import nn

from ddltrain.comm.buckets import Buckets
from ddltrain.comm.engine import Engine
from ddltrain.comm.world import World
from ddltrain.errors import DataError, RecipeError
from ddltrain.input.loader import Decoder
from ddltrain.input.store import Dataset, Store, open_dataset
from ddltrain.input.transform import eval_transform, train_transform
from ddltrain.nets import build_model
from ddltrain.recipe import Recipe


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
    return Buckets(model, engine, int(recipe.comm.bucket_mib * (1 << 20)), num_extras, wire)


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


def make_decoder(
    recipe: Recipe, store: Store, is_training: bool, num_threads: int, device: torch.device
) -> Decoder:
    """A decoder of a split, with the crops of training or of evaluation. Its threads end with the context it opens."""
    transform = train_transform(recipe.data) if is_training else eval_transform(recipe.data)
    return Decoder(store, transform, recipe.data.image_size, num_threads, pin=device.type == "cuda")
