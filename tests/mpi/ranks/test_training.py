"""Training on N ranks against training on one, inside one job: each rank also trains alone."""

import copy
import io
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
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
from ddltrain.train.batchnorm import normalize_over_ranks
from ddltrain.train.evaluate import Evaluation, evaluate
from ddltrain.train.inputs import Normalizer
from ddltrain.train.monitor import Monitor
from ddltrain.train.position import Position
from ddltrain.train.setup import make_eval_loader, make_loaders
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


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Five classes of 8x8 images, the same on all ranks."""
    folder = tmp_path_factory.mktemp("data")
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
) -> tuple[Recorder, nn.Module]:
    """One run from the start or from a checkpoint, told to stop on the last rank at a step."""
    torch.set_num_threads(1)
    model, recorder = model or small_net(with_norm), Recorder()
    with ExitStack() as stack:
        loaders = make_loaders(
            config,
            dataset,
            world,
            2,
            torch.device(device),
            monitor=lambda: recorder,
            ranks_per_host=ranks_per_host,
        )
        for loader in loaders.values():
            stack.enter_context(loader)
        trainer = Trainer(config, model, dataset, loaders, engine, torch.device(device))
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
    together, model = train(dataset, recipe(4), world, engine, with_norm=False)
    apart, reference = train(dataset, recipe(4 * world.world_size), alone, Engine(alone), with_norm=False)
    assert len(together.losses) == len(apart.losses)
    np.testing.assert_allclose(together.losses, apart.losses, rtol=1e-4)
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("comm", ["fp32", "bf16"])
def test_several_hosts_train_as_one(dataset: Dataset, world: World, engine: Engine, comm: str) -> None:
    """With all-reduces that begin in backward; in 16 bits nearly so, and the counts of right answers are counts."""
    apart = Engine(world, algorithm="multicolor", ranks_per_host=1)
    config = parse_recipe(RECIPE.format(batch=4, every=0), "test", [f"comm.wire={comm}"])
    there, model = train(dataset, config, world, apart, with_norm=True)
    again, same = train(dataset, config, world, apart, with_norm=True)
    here, _ = train(dataset, recipe(4), world, engine, with_norm=True)
    np.testing.assert_allclose(there.losses, here.losses, rtol=1e-4 if comm == "fp32" else 0.05)
    assert there.losses == again.losses
    assert same_bits(model, same)
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert torch.equal(engine.broadcast_(flat.clone()), flat)


def test_the_same_seed_gives_the_same_bits_on_every_rank_and_every_time(
    dataset: Dataset, world: World, engine: Engine
) -> None:
    first, model = train(dataset, recipe(4), world, engine, with_norm=True)
    second, again = train(dataset, recipe(4), world, engine, with_norm=True)
    assert first.losses == second.losses
    assert same_bits(model, again)
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert torch.equal(engine.broadcast_(flat.clone()), flat)
    assert world.comm.allgather(first.losses) == [first.losses] * world.world_size


@pytest.mark.parametrize("every", [7, 1])
def test_a_run_restored_from_any_checkpoint_ends_with_the_same_bits(
    dataset: Dataset, world: World, engine: Engine, every: int
) -> None:
    whole, model = train(dataset, recipe(8, every), world, engine, with_norm=True)
    steps = world.comm.bcast(sorted(whole.states))
    for step in {steps[0], steps[len(steps) // 2], steps[-1]}:
        state = engine.broadcast_bytes(whole.states.get(step), world)
        rest, again = train(dataset, recipe(8, every), world, engine, with_norm=True, state=state)
        assert rest.losses == whole.losses[step:]
        assert same_bits(model, again)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_trains_as_a_cpu_does(dataset: Dataset, world: World, engine: Engine) -> None:
    on_cpu, _ = train(dataset, recipe(8), world, engine, with_norm=True)
    on_gpu, _ = train(dataset, recipe(8), world, engine, with_norm=True, device="cuda")
    np.testing.assert_allclose(on_gpu.losses, on_cpu.losses, rtol=0.02)


def test_a_stopped_run_goes_on_as_if_it_had_not_been_stopped(
    dataset: Dataset, world: World, engine: Engine
) -> None:
    whole, model = train(dataset, recipe(8), world, engine, with_norm=True)
    stopped, _ = train(dataset, recipe(8), world, engine, with_norm=True, stop_at=3)
    assert len(stopped.losses) == 3
    state = engine.broadcast_bytes(stopped.states.get(3), world)
    rest, again = train(dataset, recipe(8), world, engine, with_norm=True, state=state)
    assert stopped.losses + rest.losses == whole.losses
    assert same_bits(model, again)


def test_images_spread_over_hosts_train_as_images_whole_on_each(
    dataset: Dataset, world: World, engine: Engine
) -> None:
    """Also stopped in mid-epoch and gone on with."""
    whole, model = train(dataset, recipe(8), world, engine, with_norm=True)
    config = recipe(8)
    config = replace(config, data=replace(config.data, groups=1))
    spread, again = train(dataset, config, world, engine, with_norm=True, ranks_per_host=1)
    assert spread.losses == whole.losses
    assert same_bits(model, again)
    assert len(spread.exchanges) == (2 if world.world_size > 1 else 0)
    stopped, _ = train(dataset, config, world, engine, with_norm=True, stop_at=4, ranks_per_host=1)
    state = engine.broadcast_bytes(stopped.states.get(4), world)
    rest, again = train(dataset, config, world, engine, with_norm=True, state=state, ranks_per_host=1)
    assert stopped.losses + rest.losses == whole.losses
    assert same_bits(model, again)


def test_what_is_saved_has_the_mean_of_the_ranks_statistics(
    dataset: Dataset, world: World, engine: Engine
) -> None:
    recorder, model = train(dataset, recipe(8), world, engine, with_norm=True)
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
    whole, model = train(dataset, recipe(8, 1), world, engine, True, model=Odd(world.rank))
    other, again = train(dataset, recipe(8, every), world, engine, True, model=Odd(world.rank))
    assert other.losses == whole.losses
    assert same_bits(model, again)
    steps = world.comm.bcast(sorted(whole.states))
    state = engine.broadcast_bytes(whole.states.get(steps[3]), world)
    rest, resumed = train(dataset, recipe(8, every), world, engine, True, state=state, model=Odd(world.rank))
    assert rest.losses == whole.losses[steps[3] :]
    assert same_bits(model, resumed)


def test_an_evaluation_does_not_depend_on_the_number_of_ranks(
    dataset: Dataset, world: World, engine: Engine, alone: World
) -> None:
    config, device = recipe(8), torch.device("cpu")
    _, model = train(dataset, config, world, engine, with_norm=False)
    store, normalize = dataset.splits["train"], Normalizer(config.data, device, channels_last=True)
    with (
        make_eval_loader(config, store, world, 2, device) as loader,
        make_eval_loader(config, store, alone, 2, device) as own,
    ):
        together = evaluate(model, loader, store.labels, normalize, engine)
        apart = evaluate(model, own, store.labels, normalize, Engine(alone))
        stopped = evaluate(
            model, loader, store.labels, normalize, engine, should_stop=lambda: engine.rank == 0
        )
    assert together is not None
    assert apart is not None
    assert together.figures() == apart.figures()
    assert together.count == NUM_TRAIN
    assert together.correct5 == NUM_TRAIN  # of five classes
    for own, other in ((together.predictions, apart.predictions), (together.confidences, apart.confidences)):
        assert np.array_equal(own, other)
    assert stopped is None


def same_weights(one: nn.Module, other: nn.Module) -> None:
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-5)


def test_accumulating_ranks_train_as_more_ranks_would(
    dataset: Dataset, world: World, engine: Engine, alone: World
) -> None:
    """Batch normalization sees the same images together, too: a part of one rank is a whole rank's share elsewhere."""
    size = world.world_size
    together, model = train(dataset, recipe(2, 0, "train.accumulate=2"), world, engine, with_norm=True)
    config = recipe(2, 0, f"train.accumulate={2 * size}")
    apart, reference = train(dataset, config, alone, Engine(alone), with_norm=True)
    assert len(together.losses) == len(apart.losses) == 3 * -(-NUM_TRAIN // (4 * size))
    np.testing.assert_allclose(together.losses, apart.losses, rtol=1e-3)
    same_weights(model, reference)


def test_unequal_shares_of_a_global_batch_train_as_one_rank_does(
    dataset: Dataset, world: World, engine: Engine, alone: World
) -> None:
    together, model = train(dataset, recipe(2, 0, "train.global_batch=17"), world, engine, with_norm=False)
    apart, reference = train(dataset, recipe(17), alone, Engine(alone), with_norm=False)
    assert len(together.losses) == len(apart.losses) == 3 * -(-NUM_TRAIN // 17)
    np.testing.assert_allclose(together.losses, apart.losses, rtol=1e-3)
    same_weights(model, reference)


def test_hosts_that_sum_by_torch_train_as_one_rank_does(dataset: Dataset, world: World, alone: World) -> None:
    engine = Engine(world, ranks_per_host=2)
    config = recipe(4, 0, "comm.local=torch", "train.epochs=1")
    together, model = train(dataset, config, world, engine, with_norm=False)
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert torch.equal(engine.broadcast_(flat.clone()), flat)
    config = recipe(4 * world.world_size, 0, "train.epochs=1")
    apart, reference = train(dataset, config, alone, Engine(alone), with_norm=False)
    np.testing.assert_allclose(together.losses, apart.losses, rtol=1e-3)
    same_weights(model, reference)


def test_the_gradient_is_clipped_by_the_norm_of_its_sum_over_ranks(
    dataset: Dataset, world: World, engine: Engine, alone: World
) -> None:
    overrides = ("optim.clip_norm=0.1", "train.ema=0.9", "train.epochs=1")
    together, model = train(dataset, recipe(4, 0, *overrides), world, engine, with_norm=False)
    config = recipe(4 * world.world_size, 0, *overrides)
    apart, reference = train(dataset, config, alone, Engine(alone), with_norm=False)
    np.testing.assert_allclose(together.losses, apart.losses, rtol=1e-3)
    same_weights(model, reference)
    free, _ = train(dataset, recipe(4, 0, "train.epochs=1"), world, engine, with_norm=False)
    assert not np.allclose(together.losses, free.losses, rtol=1e-3)


def test_a_group_of_all_ranks_normalizes_as_one_rank(
    dataset: Dataset, world: World, engine: Engine, alone: World
) -> None:
    config = recipe(4, 0, f"bn.group={world.world_size}")
    net = normalize_over_ranks(small_net(with_norm=True), world, world.world_size, 60)
    together, model = train(dataset, config, world, engine, with_norm=True, model=net)
    apart, reference = train(dataset, recipe(4 * world.world_size), alone, Engine(alone), with_norm=True)
    np.testing.assert_allclose(together.losses, apart.losses, rtol=1e-3)
    same_weights(model, reference)
    for ours, theirs in zip(model.buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    top1 = [one.top1 for one in together.evaluations]
    assert top1 == pytest.approx([one.top1 for one in apart.evaluations], abs=3)


def test_groups_have_statistics_of_their_own_and_survive_a_stop(
    dataset: Dataset, world: World, engine: Engine
) -> None:
    """A step of one image on the last rank alone, and of none on others, included: the global batch is one image a rank."""
    group = 2 if world.world_size % 2 == 0 else world.world_size
    config = recipe(1, 0, f"bn.group={group}", "train.epochs=1", "train.accumulate=3")

    def net() -> nn.Module:
        return normalize_over_ranks(small_net(with_norm=True), world, group, 60)

    whole, model = train(dataset, config, world, engine, True, model=net())
    statistics: list[list[float]] = world.comm.allgather(RunningStatistics(model).get().tolist())
    for rank in range(world.world_size):
        assert (statistics[rank] == statistics[world.rank]) == (rank // group == world.rank // group)
    stopped, _ = train(dataset, config, world, engine, True, model=net(), stop_at=4)
    state = engine.broadcast_bytes(stopped.states.get(4), world)
    rest, again = train(dataset, config, world, engine, True, state=state, model=net())
    assert stopped.losses + rest.losses == whole.losses
    assert same_bits(model, again)


EVERYTHING = (
    "train.ema=0.8",
    "optim.clip_norm=0.5",
    "optim.kind=lars",
    "optim.trust=0.02",
    "data.mixup=0.2",
    "data.cutmix=1.0",
    "data.color_jitter=0.4",
    "data.lighting=0.1",
    "data.randaugment=[1, 5]",
    "data.progressive_size=[[0, 7], [1, 8]]",
    "train.precision=bf16",
)


class AverageRecorder(Recorder):
    """Keeps what is said of the average, too."""

    def __init__(self) -> None:
        super().__init__()
        self.averages: list[Evaluation] = []

    def evaluated_average(self, position: Position, evaluation: Evaluation) -> None:
        self.averages.append(evaluation)


def test_with_everything_on_ranks_stay_equal_and_a_stop_changes_no_bit(
    dataset: Dataset, world: World, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "Recorder", AverageRecorder)
    config = recipe(6, 0, *EVERYTHING)
    net = nn.Sequential(*small_net(with_norm=True)[:5], nn.AdaptiveAvgPool2d(3), *small_net(True)[5:])
    whole, model = train(dataset, config, world, engine, True, model=copy.deepcopy(net))
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert torch.equal(engine.broadcast_(flat.clone()), flat)
    assert isinstance(whole, AverageRecorder)
    assert len(whole.averages) == 3
    assert whole.averages[0].loss != whole.evaluations[0].loss
    stopped, _ = train(dataset, config, world, engine, True, model=copy.deepcopy(net), stop_at=4)
    state = engine.broadcast_bytes(stopped.states.get(4), world)
    rest, again = train(dataset, config, world, engine, True, state=state, model=copy.deepcopy(net))
    assert stopped.losses + rest.losses == whole.losses
    assert same_bits(model, again)
    assert isinstance(rest, AverageRecorder)
    assert rest.averages[-1].figures() == whole.averages[-1].figures()
    last = max(whole.states, default=0)
    if world.rank == 0:
        ends = [torch.load(io.BytesIO(one.states[last]), weights_only=True) for one in (whole, rest)]
        for name, value in ends[0]["ema"].items():
            assert torch.equal(value, ends[1]["ema"][name]), name
        assert any(not torch.equal(value, ends[0]["model"][name]) for name, value in ends[0]["ema"].items())
