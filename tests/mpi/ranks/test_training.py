"""Training on N ranks against training on one, inside one job: each rank also trains alone."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from training_runs import NUM_TRAIN, recipe, same_bits, train

from ddltrain.comm.engine import Engine
from ddltrain.comm.world import World
from ddltrain.input.store import Dataset
from ddltrain.train.evaluate import evaluate
from ddltrain.train.inputs import Normalizer
from ddltrain.train.setup import make_eval_loader
from ddltrain.train.statistics import RunningStatistics


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
    config = recipe(4, 0, f"comm.wire={comm}")
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
