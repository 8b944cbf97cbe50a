"""One step on one rank: clipping, the average of the weights, loss scaling, precision."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ddltrain.comm.engine import Engine
from ddltrain.comm.world import start_world
from ddltrain.errors import RecipeError
from ddltrain.input.loader import Batch
from ddltrain.input.mixing import Targets
from ddltrain.input.order import StepPlan
from ddltrain.recipe import Recipe, parse_recipe
from ddltrain.train import step as module
from ddltrain.train.inputs import Normalizer
from ddltrain.train.precision import check_precision
from ddltrain.train.setup import schedule_of
from ddltrain.train.step import Step

CPU = torch.device("cpu")
RECIPE = """
[model]
name = "resnet20"
[data]
image_size = 6
[train]
epochs = 3
batch_per_rank = 8
[optim]
lr_base = 3.2
nesterov = false
momentum = 0
weight_decay = 0
[schedule]
kind = "cosine"
"""


def recipe(*overrides: str) -> Recipe:
    return parse_recipe(RECIPE, "test", overrides)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(start_world())


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)).to(
        memory_format=torch.channels_last
    )


def make(config: Recipe, model: nn.Module, engine: Engine) -> Step:
    normalize = Normalizer(config.data, CPU, channels_last=True)
    return Step(config, model, normalize, schedule_of(config, StepPlan(80, 1, 8, "keep")), engine, CPU)


def batch(seed: int = 0, count: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (count, 3, 6, 6), dtype=torch.uint8, generator=generator)
    labels = torch.randint(5, (count,), generator=generator)
    return Batch(images.contiguous(memory_format=torch.channels_last), labels, np.arange(count), count)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])


@pytest.mark.parametrize("clip_norm", [0.05, 1e6])
def test_clipping_bounds_the_norm_of_the_whole_gradient(engine: Engine, clip_norm: float) -> None:
    models = [net(), net()]
    for model, limit in zip(models, (0, clip_norm), strict=True):
        make(recipe(f"optim.clip_norm={limit}"), model, engine)(batch(), [8], 0, 0, False)
    start = weights(net())
    free, clipped = (start - weights(model) for model in models)  # the rate is 0.1
    if clip_norm > 1:
        torch.testing.assert_close(clipped, free)
    else:
        assert clipped.norm().item() == pytest.approx(0.1 * clip_norm, rel=1e-4)
        torch.testing.assert_close(clipped / clipped.norm(), free / free.norm(), rtol=1e-4, atol=1e-5)


def test_the_average_of_the_weights_is_the_formula(engine: Engine) -> None:
    model = net()
    step = make(recipe("train.ema=0.75"), model, engine)
    assert step.average is not None
    expected = {name: value.double() for name, value in model.state_dict().items()}
    for number in range(4):
        step(batch(number), [8], 0, number, False)
        for name, value in model.state_dict().items():
            expected[name] = value if "tracked" in name else 0.75 * expected[name] + 0.25 * value.double()
    for name, value in step.average.model.state_dict().items():
        torch.testing.assert_close(value.double(), expected[name].double(), rtol=1e-5, atol=1e-6)
    assert not step.average.model.training
    assert not any(parameter.requires_grad for parameter in step.average.model.parameters())
    assert model.training


def test_a_skipped_step_drops_what_error_feedback_keeps(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = net()
    step = make(recipe("train.not_finite=skip"), model, engine)
    dropped: list[int] = []
    monkeypatch.setattr(step.buckets, "drop_residuals", lambda: dropped.append(1))
    step(batch(), [8], 0, 0, False)
    assert not dropped
    model.register_forward_hook(lambda _, __, scores: scores * float("nan"))
    step(batch(), [8], 0, 1, False)
    assert dropped


def test_parts_of_a_step_sum_to_the_whole(engine: Engine) -> None:
    """Without batch normalization, which sees each part by itself."""
    ends = []
    for sizes in ([8], [3, 0, 4, 1]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(108, 5))
        figures = make(recipe(), model, engine)(batch(), sizes, 0, 0, False)
        ends.append((weights(model), figures))
    torch.testing.assert_close(ends[0][0], ends[1][0])
    assert ends[0][1] == pytest.approx(ends[1][1])


def test_a_parameter_without_a_part_in_the_step_is_decayed_as_with_many_ranks(engine: Engine) -> None:
    """On many ranks its gradient is a view of a bucket, zero; on one it must not be skipped either."""

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(108, 5), nn.Linear(108, 5)

        def forward(self, images: Tensor) -> Tensor:
            scores: Tensor = self.used(images.flatten(1))
            return scores

    for kind in ("sgd", "lars"):
        model = Part()
        before = model.idle.weight.detach().clone()
        step = make(recipe("optim.weight_decay=0.5", f"optim.kind={kind}", "optim.trust=0.5"), model, engine)
        for number in range(2):
            step(batch(number), [8], 0, number, False)
        assert (model.idle.weight.norm() / before.norm()).item() < 0.95


class CpuScaler:
    """Loss scaling is for GPUs; its rules do not hang on the device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        monkeypatch.setattr(module, "make_scaler", lambda *_: self.scaler)


def test_loss_scaling_changes_no_step_and_skips_what_is_not_finite(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, scaled = net(), net()
    unscaled_step = make(recipe("optim.clip_norm=0.5"), plain, engine)
    scaler = CpuScaler(monkeypatch).scaler
    step = make(recipe("optim.clip_norm=0.5"), scaled, engine)
    for number in range(2):
        unscaled_step(batch(number), [8], 0, number, False)
        step(batch(number), [8], 0, number, False)
    torch.testing.assert_close(weights(plain), weights(scaled), rtol=1e-4, atol=1e-6)
    assert scaler.get_scale() == 2048  # it has grown
    before = weights(scaled)

    def overflow() -> None:
        gradient = scaled[0].weight.grad
        assert gradient is not None
        gradient[0, 0, 0, 0] = float("inf")

    monkeypatch.setattr(step.buckets, "allreduce_", overflow)
    loss, _, _ = step(batch(2), [8], 0, 2, False)
    assert np.isfinite(loss)
    assert torch.equal(weights(scaled), before)
    assert scaler.get_scale() == 1024
    state: dict[str, Any] = copy.deepcopy(step.state())
    assert state["scaler"]["scale"] == 1024


def test_fp16_is_for_gpus() -> None:
    check_precision("fp16", torch.device("cuda", 0))
    check_precision("bf16", CPU)
    with pytest.raises(RecipeError, match=r"train\.precision.*bf16"):
        check_precision("fp16", CPU)


def test_under_bf16_loss_gradients_and_statistics_are_float32(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = net()
    seen: list[torch.dtype] = []
    model[2].register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    step = make(recipe("train.precision=bf16"), model, engine)
    losses: list[tuple[torch.dtype, torch.dtype]] = []
    loss_sum = Targets.loss_sum

    def watched(self: Targets, scores: Tensor, label_smoothing: float) -> Tensor:
        loss = loss_sum(self, scores, label_smoothing)
        losses.append((scores.dtype, loss.dtype))
        return loss

    monkeypatch.setattr(Targets, "loss_sum", watched)
    step(batch(), [8], 0, 0, False)
    assert seen == [torch.bfloat16]
    assert losses == [(torch.float32, torch.float32)]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert {bucket.dtype for bucket in step.buckets.flat} == {torch.float32}
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm2d)
    images = Normalizer(recipe().data, CPU, channels_last=True)(batch().images)
    start = net()
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        inputs = start[0](images)
    assert inputs.dtype == torch.bfloat16
    exact_mean = inputs.double().mean(dim=(0, 2, 3))
    exact_variance = inputs.double().var(dim=(0, 2, 3))
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.running_mean.dtype == norm.running_var.dtype == torch.float32
    # Far closer than bfloat16, with its 8 bits, could be.
    torch.testing.assert_close(norm.running_mean.double(), 0.1 * exact_mean, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(norm.running_var.double(), 0.9 + 0.1 * exact_variance, rtol=1e-5, atol=1e-6)
