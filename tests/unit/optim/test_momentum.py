"""LARS, SGD without momentum correction and the RMSprop hybrid, against their formulas in float64."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from ddltrain.optim import make_optimizer, set_learning_rate
from ddltrain.optim.momentum import trust_ratios
from ddltrain.recipe import OptimRecipe

RATES = [0.3, 0.7, 0.0, 0.2, 0.01]


def make_model() -> nn.Sequential:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    return model.to(memory_format=torch.channels_last)


def random_gradients(model: nn.Module, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    gradients = []
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter).copy_(torch.randn(parameter.shape, generator=generator))
        gradients.append(parameter.grad.double())
    return gradients


def check_close(model: nn.Module, weights: list[Tensor]) -> None:
    for parameter, weight in zip(model.parameters(), weights, strict=True):
        torch.testing.assert_close(parameter.detach().double(), weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("nesterov", [False, True])
def test_lars_as_published(nesterov: bool) -> None:
    """v = m v + lr * eta |w| / (|g| + beta |w|) * (g + beta w);  w = w - v;  no ratio and no decay for one dimension."""
    beta, eta, momentum = 0.1, 0.02, 0.9
    model = make_model()
    recipe = OptimRecipe(
        lr_base=1, kind="lars", trust=eta, weight_decay=beta, nesterov=nesterov, momentum_correction=False
    )
    optimizer = make_optimizer(model, recipe)
    weights = [parameter.detach().double() for parameter in model.parameters()]
    velocities = [torch.zeros_like(weight) for weight in weights]
    for step, lr in enumerate(RATES):
        gradients = random_gradients(model, step)
        set_learning_rate(optimizer, lr)
        optimizer.step()
        for weight, velocity, gradient in zip(weights, velocities, gradients, strict=True):
            if weight.ndim > 1:
                length = math.sqrt(float((weight * weight).sum()))
                local = eta * length / (math.sqrt(float((gradient * gradient).sum())) + beta * length)
                new = lr * local * (gradient + beta * weight)
            else:
                new = lr * gradient
            velocity.mul_(momentum).add_(new)
            weight.sub_(momentum * velocity + new if nesterov else velocity)
        check_close(model, weights)


def test_the_step_of_lars_does_not_hang_on_the_size_of_the_gradient() -> None:
    ends = []
    for scale in (1.0, 1000.0):
        model = make_model()
        optimizer = make_optimizer(model, OptimRecipe(lr_base=1, kind="lars", weight_decay=0.0))
        random_gradients(model, 0)
        weight = model[0].weight
        assert weight.grad is not None
        weight.grad.mul_(scale)
        set_learning_rate(optimizer, 2.0)
        before = weight.detach().clone()
        optimizer.step()
        ends.append(weight.detach().clone())
        assert (before - ends[-1]).norm().item() == pytest.approx(
            2.0 * 0.001 * before.norm().item() * 1.9, rel=1e-4
        )
    torch.testing.assert_close(ends[0], ends[1])


def test_trust_ratios_of_nothing_are_1() -> None:
    zero, one = torch.zeros(2, 2), torch.full((2, 2), 0.5)
    assert [ratio.item() for ratio in trust_ratios([zero, one], [one, zero], 0.001, 0.0)] == [1.0, 1.0]
    ratio = trust_ratios([one], [zero], 0.001, 0.1)[0]
    assert ratio.item() == pytest.approx(0.001 / 0.1)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_without_correction_has_the_rate_inside_the_velocity(nesterov: bool) -> None:
    model = make_model()
    recipe = OptimRecipe(lr_base=1, momentum_correction=False, weight_decay=0.1, nesterov=nesterov)
    optimizer = make_optimizer(model, recipe)
    weights = [parameter.detach().double() for parameter in model.parameters()]
    velocities = [torch.zeros_like(weight) for weight in weights]
    for step, lr in enumerate(RATES):
        gradients = random_gradients(model, step)
        set_learning_rate(optimizer, lr)
        optimizer.step()
        for weight, velocity, gradient in zip(weights, velocities, gradients, strict=True):
            new = lr * (gradient + 0.1 * weight if weight.ndim > 1 else gradient)
            velocity.mul_(0.9).add_(new)
            weight.sub_(0.9 * velocity + new if nesterov else velocity)
        check_close(model, weights)


@pytest.mark.parametrize("kind", ["sgd", "lars"])
def test_correction_is_goyal_s_factor_on_the_velocity(kind: str) -> None:
    """Where the rate goes from a to b, the corrected velocity is momentum * b / a times the old one, plus the new part."""
    plain, corrected = make_model(), make_model()
    optimizers = [
        make_optimizer(
            model, OptimRecipe(lr_base=1, kind=kind, nesterov=False, momentum_correction=is_corrected)
        )
        for model, is_corrected in ((plain, False), (corrected, True))
    ]
    previous = 0.5
    for step, lr in enumerate([0.5, 0.5, 0.05, 0.25]):
        for model, optimizer in zip((plain, corrected), optimizers, strict=True):
            random_gradients(model, step)
            set_learning_rate(optimizer, lr)
        for group in optimizers[0].param_groups:
            group["momentum"] = 0.9 * lr / previous
        previous = lr
        for optimizer in optimizers:
            optimizer.step()
        check_close(plain, [parameter.detach().double() for parameter in corrected.parameters()])


def test_the_hybrid_is_akiba_s_update() -> None:
    """d = mu d - (alpha_sgd + alpha_rmsprop / (sqrt(m) + eps)) g;  w = w + lr d."""
    model, rmsprop_lr = make_model(), 3e-3
    optimizer = make_optimizer(model, OptimRecipe(lr_base=1, nesterov=False, weight_decay=0.0), rmsprop_lr)
    weights = [parameter.detach().double() for parameter in model.parameters()]
    steps = [torch.zeros_like(weight) for weight in weights]
    squares = [torch.zeros_like(weight) for weight in weights]
    for number, share in enumerate([1.0, 0.8, 0.5, 0.1, 0.0, 0.0]):
        gradients = random_gradients(model, number)
        set_learning_rate(optimizer, 0.4, share)
        optimizer.step()
        alpha_sgd, alpha_rmsprop = 1 - share, share * rmsprop_lr / 0.4
        for weight, step, square, gradient in zip(weights, steps, squares, gradients, strict=True):
            square.mul_(0.99).add_(0.01 * gradient * gradient)
            step.mul_(0.9).sub_((alpha_sgd + alpha_rmsprop / (square.sqrt() + 1e-8)) * gradient)
            weight.add_(0.4 * step)
        check_close(model, weights)


@pytest.mark.parametrize(
    ("kind", "corrects", "options"),
    [("sgd", True, {}), ("sgd", False, {"rmsprop_lr": 0.01}), ("lars", False, {})],
)
def test_state_survives_saving(kind: str, corrects: bool, options: dict[str, float]) -> None:
    """Steps in one go, or with the optimizer's state carried over in between: the same bits."""
    recipe = OptimRecipe(lr_base=0.1, kind=kind, momentum_correction=corrects)
    models = [make_model(), make_model()]
    optimizers = [make_optimizer(model, recipe, **options) for model in models]
    for step in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            random_gradients(model, step)
            set_learning_rate(optimizer, 0.2, 0.5 if options else 0.0)
            optimizer.step()
        state = copy.deepcopy(optimizers[1].state_dict())
        optimizers[1] = make_optimizer(models[1], recipe, **options)
        optimizers[1].load_state_dict(state)
    for first, second in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(first, second)
