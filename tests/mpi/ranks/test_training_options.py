"""What recipes add to training, on N ranks against one rank."""

import copy
import io

import numpy as np
import pytest
import torch
from torch import nn
from training_runs import NUM_TRAIN, Recorder, recipe, same_bits, same_weights, small_net, train

from ddltrain.comm.engine import Engine
from ddltrain.comm.world import World
from ddltrain.input.store import Dataset
from ddltrain.train.batchnorm import normalize_over_ranks
from ddltrain.train.evaluate import Evaluation
from ddltrain.train.position import Position
from ddltrain.train.statistics import RunningStatistics


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


def test_a_run_with_error_feedback_goes_on_from_a_save_to_the_same_bits(
    dataset: Dataset, world: World
) -> None:
    engine = Engine(world, ranks_per_host=1)
    narrow, every = "comm.wire=bf16", 4
    plain, _ = train(dataset, recipe(4, every, narrow), world, engine, with_norm=False)
    config = recipe(4, every, narrow, "comm.error_feedback=true")
    fed, model = train(dataset, config, world, engine, with_norm=False)
    assert fed.losses[:2] == plain.losses[:2]
    assert (fed.losses == plain.losses) == (world.world_size == 1)
    state = engine.broadcast_bytes(fed.states.get(every), world)
    rest, again = train(dataset, config, world, engine, with_norm=False, state=state)
    assert rest.losses == fed.losses[every:]
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
    dataset: Dataset, world: World, engine: Engine
) -> None:
    config = recipe(6, 0, *EVERYTHING)
    net = nn.Sequential(*small_net(with_norm=True)[:5], nn.AdaptiveAvgPool2d(3), *small_net(True)[5:])
    whole, rest = AverageRecorder(), AverageRecorder()
    _, model = train(dataset, config, world, engine, True, model=copy.deepcopy(net), recorder=whole)
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert torch.equal(engine.broadcast_(flat.clone()), flat)
    assert len(whole.averages) == 3
    assert whole.averages[0].loss != whole.evaluations[0].loss
    stopped, _ = train(dataset, config, world, engine, True, model=copy.deepcopy(net), stop_at=4)
    state = engine.broadcast_bytes(stopped.states.get(4), world)
    _, again = train(dataset, config, world, engine, True, state, model=copy.deepcopy(net), recorder=rest)
    assert stopped.losses + rest.losses == whole.losses
    assert same_bits(model, again)
    assert rest.averages[-1].figures() == whole.averages[-1].figures()
    last = max(whole.states, default=0)
    if world.rank == 0:
        ends = [torch.load(io.BytesIO(one.states[last]), weights_only=True) for one in (whole, rest)]
        for name, value in ends[0]["ema"].items():
            assert torch.equal(value, ends[1]["ema"][name]), name
        assert any(not torch.equal(value, ends[0]["model"][name]) for name, value in ends[0]["ema"].items())
