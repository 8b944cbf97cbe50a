"""Training on N ranks against training on one, inside one job: each rank also trains alone."""

import io
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from ddltrain.comm.engine import Engine
from ddltrain.comm.world import World
from ddltrain.input.store import Dataset, Record, Store, StoreWriter
from ddltrain.recipe import Recipe, parse_recipe
from ddltrain.train.evaluate import Evaluation, evaluate
from ddltrain.train.inputs import Normalizer
from ddltrain.train.monitor import Monitor
from ddltrain.train.position import Position
from ddltrain.train.setup import make_decoder
from ddltrain.train.statistics import RunningStatistics
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


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Five classes of 8x8 images, the same on all ranks."""
    folder = tmp_path_factory.mktemp("data")
    noise = np.random.default_rng(0)
    centres = noise.integers(60, 196, (5, 8, 8, 3))
    stores = {}
    for split, count in (("train", NUM_TRAIN), ("val", 71)):
        with StoreWriter(folder / f"{split}.lmdb") as writer:
            for number in range(count):
                file = io.BytesIO()
                pixels = centres[number % 5] + noise.integers(-60, 60, (8, 8, 3))
                Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
                writer.append(Record(f"{number}.png", number % 5, file.getvalue()))
        stores[split] = Store(folder / f"{split}.lmdb")
    return Dataset(folder, tuple("abcde"), "fingerprint", stores, {})


def recipe(batch: int, every: int = 0) -> Recipe:
    return parse_recipe(RECIPE.format(batch=batch, every=every), "test")


def train(
    dataset: Dataset,
    config: Recipe,
    engine: Engine,
    with_norm: bool,
    state: bytes | None = None,
    stop_at: int | None = None,
    device: str = "cpu",
    model: nn.Module | None = None,
) -> tuple[Recorder, nn.Module]:
    """One run from the start or from a checkpoint, told to stop on the last rank at a step."""
    torch.set_num_threads(1)
    model, recorder = model or small_net(with_norm), Recorder()
    with ExitStack() as stack:
        decoders = {
            split: stack.enter_context(make_decoder(config, store, split == "train", 2, torch.device(device)))
            for split, store in dataset.splits.items()
        }
        trainer = Trainer(config, model, dataset, decoders, engine, torch.device(device))
        if state is not None:
            trainer.restore(state, "it")
        is_last = engine.rank == engine.world_size - 1
        trainer.run(recorder, lambda: is_last and trainer.position.step + 1 == stop_at)
    return recorder, model


def same_bits(one: nn.Module, other: nn.Module) -> bool:
    return all(
        torch.equal(first, second)
        for first, second in zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    )


def test_n_ranks_train_as_one_rank_with_the_whole_batch(
    dataset: Dataset, world: World, engine: Engine, alone: World
) -> None:
    together, model = train(dataset, recipe(4), engine, with_norm=False)
    apart, reference = train(dataset, recipe(4 * world.world_size), Engine(alone), with_norm=False)
    assert len(together.losses) == len(apart.losses)
    np.testing.assert_allclose(together.losses, apart.losses, rtol=1e-4)
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("comm", ["fp32", "bf16"])
def test_several_hosts_train_as_one(dataset: Dataset, world: World, engine: Engine, comm: str) -> None:
    """With all-reduces that begin in backward; in 16 bits nearly so, and the counts of right answers are counts."""
    apart = Engine(world, algorithm="multicolor", ranks_per_host=1)
    config = parse_recipe(RECIPE.format(batch=4, every=0), "test", [f"comm.wire={comm}"])
    there, model = train(dataset, config, apart, with_norm=True)
    again, same = train(dataset, config, apart, with_norm=True)
    here, _ = train(dataset, recipe(4), engine, with_norm=True)
    np.testing.assert_allclose(there.losses, here.losses, rtol=1e-4 if comm == "fp32" else 0.05)
    assert there.losses == again.losses
    assert same_bits(model, same)
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert torch.equal(engine.broadcast_(flat.clone()), flat)


def test_the_same_seed_gives_the_same_bits_on_every_rank_and_every_time(
    dataset: Dataset, world: World, engine: Engine
) -> None:
    first, model = train(dataset, recipe(4), engine, with_norm=True)
    second, again = train(dataset, recipe(4), engine, with_norm=True)
    assert first.losses == second.losses
    assert same_bits(model, again)
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert torch.equal(engine.broadcast_(flat.clone()), flat)
    assert world.comm.allgather(first.losses) == [first.losses] * world.world_size


@pytest.mark.parametrize("every", [7, 1])
def test_a_run_restored_from_any_checkpoint_ends_with_the_same_bits(
    dataset: Dataset, world: World, engine: Engine, every: int
) -> None:
    whole, model = train(dataset, recipe(8, every), engine, with_norm=True)
    steps = world.comm.bcast(sorted(whole.states))
    for step in {steps[0], steps[len(steps) // 2], steps[-1]}:
        state = engine.broadcast_bytes(whole.states.get(step), world)
        rest, again = train(dataset, recipe(8, every), engine, with_norm=True, state=state)
        assert rest.losses == whole.losses[step:]
        assert same_bits(model, again)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_trains_as_a_cpu_does(dataset: Dataset, engine: Engine) -> None:
    on_cpu, _ = train(dataset, recipe(8), engine, with_norm=True)
    on_gpu, _ = train(dataset, recipe(8), engine, with_norm=True, device="cuda")
    np.testing.assert_allclose(on_gpu.losses, on_cpu.losses, rtol=0.02)


def test_a_stopped_run_goes_on_as_if_it_had_not_been_stopped(
    dataset: Dataset, world: World, engine: Engine
) -> None:
    whole, model = train(dataset, recipe(8), engine, with_norm=True)
    stopped, _ = train(dataset, recipe(8), engine, with_norm=True, stop_at=3)
    assert len(stopped.losses) == 3
    state = engine.broadcast_bytes(stopped.states.get(3), world)
    rest, again = train(dataset, recipe(8), engine, with_norm=True, state=state)
    assert stopped.losses + rest.losses == whole.losses
    assert same_bits(model, again)


def test_what_is_saved_has_the_mean_of_the_ranks_statistics(
    dataset: Dataset, world: World, engine: Engine
) -> None:
    recorder, model = train(dataset, recipe(8), engine, with_norm=True)
    own = RunningStatistics(model).get()
    mean = engine.allreduce_(own.clone()) / world.world_size
    if world.rank == 0:
        saved = torch.load(io.BytesIO(recorder.states[max(recorder.states)]), weights_only=True)["model"]
        buffers = [
            saved[f"1.{name}"].double().flatten()
            for name in ("running_mean", "running_var", "num_batches_tracked")
        ]
        torch.testing.assert_close(torch.cat(buffers), mean)
        assert not any(key.startswith(("module.", "_orig_mod.")) for key in saved)


class Odd(nn.Module):
    """Buffers of several dtypes that differ between ranks and that matter; one is put anew in each step."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.layer = nn.Linear(192, 5)
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("seen", torch.tensor(rank))
        self.register_buffer("total", torch.zeros((), dtype=torch.float64))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layer(images.flatten(1))
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * scores.detach().mean(0)
            self.seen += len(images)
            self.total += scores.detach().double().mean() / 3
        return scores + 0.01 * self.mean + 1e-3 * self.seen + self.total.float()


@pytest.mark.parametrize("every", [0, 5])
def test_odd_buffers_survive_and_saving_changes_nothing(
    dataset: Dataset, world: World, engine: Engine, every: int
) -> None:
    whole, model = train(dataset, recipe(8, 1), engine, True, model=Odd(world.rank))
    other, again = train(dataset, recipe(8, every), engine, True, model=Odd(world.rank))
    assert other.losses == whole.losses
    assert same_bits(model, again)
    steps = world.comm.bcast(sorted(whole.states))
    state = engine.broadcast_bytes(whole.states.get(steps[3]), world)
    rest, resumed = train(dataset, recipe(8, every), engine, True, state=state, model=Odd(world.rank))
    assert rest.losses == whole.losses[steps[3] :]
    assert same_bits(model, resumed)


def test_an_evaluation_does_not_depend_on_the_number_of_ranks(
    dataset: Dataset, engine: Engine, alone: World
) -> None:
    config, device = recipe(8), torch.device("cpu")
    _, model = train(dataset, config, engine, with_norm=False)
    store, normalize = dataset.splits["train"], Normalizer(config.data, device, channels_last=True)
    with make_decoder(config, store, False, 2, device) as decoder:
        together = evaluate(model, decoder, store.labels, normalize, engine)
        apart = evaluate(model, decoder, store.labels, normalize, Engine(alone))
        stopped = evaluate(
            model, decoder, store.labels, normalize, engine, should_stop=lambda: engine.rank == 0
        )
    assert together is not None
    assert apart is not None
    assert together.figures() == apart.figures()
    assert together.count == NUM_TRAIN
    assert together.correct5 == NUM_TRAIN  # of five classes
    for own, other in ((together.predictions, apart.predictions), (together.confidences, apart.confidences)):
        assert np.array_equal(own, other)
    assert stopped is None
