"""Short runs of a small network inside one job, and what they told."""

import io
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ddltrain.comm.engine import Engine
from ddltrain.comm.world import World
from ddltrain.input import _image
from ddltrain.input.record import Record
from ddltrain.input.sharded import ExchangeTimes
from ddltrain.input.shards import StoreWriter
from ddltrain.input.store import Dataset, Store
from ddltrain.recipe import Recipe, parse_recipe
from ddltrain.train.evaluate import Evaluation
from ddltrain.train.monitor import Monitor
from ddltrain.train.position import Position
from ddltrain.train.setup import make_loaders
from ddltrain.train.trainer import Trainer

NUM_TRAIN = 203  # a last batch that no number of ranks divides
RECIPE = """
[model]
name = "resnet20"
[data]
image_size = 8
train_crop = "pad"
crop_padding = 1
eval_crop = 1.0
[train]
epochs = 3
batch_per_rank = {batch}
label_smoothing = 0.1
threads = 1
[optim]
lr_base = 0.3
weight_decay = 0.01
[schedule]
kind = "cosine"
warmup_epochs = 1
[comm]
bucket_mib = 0.003
[checkpoint]
every_steps = {every}
keep = 99
"""


class Recorder(Monitor):
    """Keeps what a run tells; rank 0's checkpoints as bytes by step."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.evaluations: list[Evaluation] = []
        self.states: dict[int, bytes] = {}
        self.exchanges: list[ExchangeTimes] = []

    def exchanged(self, times: ExchangeTimes) -> None:
        self.exchanges.append(times)

    def step(
        self,
        position: Position,
        loss: float,
        top1: float,
        num_images: int,
        lr: float,
        wait_s: float,
        step_s: float,
    ) -> None:
        self.losses.append(loss)

    def end_epoch(self, position: Position, lr: float, evaluation: Evaluation) -> None:
        self.evaluations.append(evaluation)

    def save(self, state: dict[str, object], position: Position) -> None:
        file = io.BytesIO()
        torch.save({"format": 1, **state}, file)
        self.states[position.step] = file.getvalue()


def small_net(with_norm: bool) -> nn.Module:
    torch.manual_seed(1)
    norm = nn.BatchNorm2d(8) if with_norm else nn.Identity()
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        norm,
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(72, 5),
    )


def make_dataset(folder: Path) -> Dataset:
    """Five classes of 8x8 images, the same on all ranks."""
    noise = np.random.default_rng(0)
    centres = noise.integers(60, 196, (5, 8, 8, 3))
    stores = {}
    for split, count in (("train", NUM_TRAIN), ("val", 71)):
        with StoreWriter(folder, split) as writer:
            for number in range(count):
                pixels = centres[number % 5] + noise.integers(-60, 60, (8, 8, 3))
                image = _image.pack_pixels(pixels.astype(np.uint8))
                writer.append(Record(f"{number}.png", number % 5, image))
        stores[split] = Store([folder / shard.file for shard in writer.shards])
    return Dataset(folder, tuple("abcde"), "fingerprint", stores, {})


def recipe(batch: int, every: int = 0, *overrides: str) -> Recipe:
    return parse_recipe(RECIPE.format(batch=batch, every=every), "test", overrides)


def train(
    dataset: Dataset,
    config: Recipe,
    world: World,
    engine: Engine,
    with_norm: bool,
    state: bytes | None = None,
    stop_at: int | None = None,
    device: str = "cpu",
    model: nn.Module | None = None,
    ranks_per_host: int = 0,
    recorder: Recorder | None = None,
) -> tuple[Recorder, nn.Module]:
    """One run from the start or from a checkpoint, told to stop on the last rank at a step."""
    torch.set_num_threads(1)
    model, kept = model or small_net(with_norm), recorder or Recorder()
    with ExitStack() as stack:
        loaders = make_loaders(
            config,
            dataset,
            world,
            2,
            torch.device(device),
            monitor=lambda: kept,
            ranks_per_host=ranks_per_host,
        )
        for loader in loaders.values():
            stack.enter_context(loader)
        trainer = Trainer(config, model, dataset, loaders, engine, torch.device(device))
        if state is not None:
            trainer.restore(state, "it")
        is_last = engine.rank == engine.world_size - 1
        trainer.run(kept, lambda: is_last and trainer.position.step + 1 == stop_at)
    return kept, model


def same_bits(one: nn.Module, other: nn.Module) -> bool:
    return all(
        torch.equal(first, second)
        for first, second in zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    )


def same_weights(one: nn.Module, other: nn.Module) -> None:
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-5)
