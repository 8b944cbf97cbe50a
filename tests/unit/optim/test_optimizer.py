"""The optimizer's groups, and its steps against the formula in float64."""

import copy

import pytest
import torch
from torch import Tensor, nn

from ddltrain.nets import build_model
from ddltrain.optim import make_optimizer, set_learning_rate
from ddltrain.recipe import OptimRecipe


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


def test_one_dimensional_parameters_have_no_weight_decay() -> None:
    model = build_model("resnet20", 10)
    optimizer = make_optimizer(model, OptimRecipe(lr_base=0.1, weight_decay=0.25))
    decayed, spared = optimizer.param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.25, 0.0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    spared_names = {names[id(parameter)] for parameter in spared["params"]}
    assert spared_names == {name for name in names.values() if "bn" in name or name.endswith("bias")}
    assert len(decayed["params"]) + len(spared["params"]) == len(names)


def test_frozen_parameters_are_left_out() -> None:
    model = make_model()
    model[0].requires_grad_(False)
    optimizer = make_optimizer(model, OptimRecipe(lr_base=0.1))
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 3]


def test_a_model_with_one_kind_of_parameters_keeps_two_groups() -> None:
    model = nn.Linear(3, 2, bias=False)
    optimizer = make_optimizer(model, OptimRecipe(lr_base=0.1, weight_decay=0.0))
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 0]
    before = model.weight.detach().clone()
    model.weight.grad = torch.ones_like(model.weight)
    set_learning_rate(optimizer, 0.5)
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), before - 0.5 * 1.9)


@pytest.mark.parametrize(
    ("momentum", "nesterov"), [(0.9, True), (0.9, False), (0.5, True), (0.0, False)], ids=str
)
def test_steps_equal_the_formula(momentum: float, nesterov: bool) -> None:
    model = make_model()
    recipe = OptimRecipe(lr_base=1, momentum=momentum, nesterov=nesterov, weight_decay=0.1)
    optimizer = make_optimizer(model, recipe)
    weights = [parameter.detach().double() for parameter in model.parameters()]
    velocities = [torch.zeros_like(weight) for weight in weights]
    for step, lr in enumerate([0.3, 0.7, 0.01]):
        gradients = random_gradients(model, step)
        set_learning_rate(optimizer, lr)
        optimizer.step()
        for weight, velocity, gradient in zip(weights, velocities, gradients, strict=True):
            total = gradient + 0.1 * weight if weight.ndim > 1 else gradient
            velocity.mul_(momentum).add_(total)
            weight.sub_(lr * (total + momentum * velocity if nesterov else velocity))
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            torch.testing.assert_close(parameter.detach().double(), weight, rtol=1e-5, atol=1e-6)


def test_no_step_before_a_rate_is_set() -> None:
    model = make_model()
    before = copy.deepcopy(model.state_dict())
    optimizer = make_optimizer(model, OptimRecipe(lr_base=0.1))
    random_gradients(model, 0)
    optimizer.step()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_set_learning_rate_reaches_every_group() -> None:
    optimizer = make_optimizer(make_model(), OptimRecipe(lr_base=0.1))
    for lr in (0.1, 0.25, 0.0):
        set_learning_rate(optimizer, lr)
        assert [group["lr"] for group in optimizer.param_groups] == [lr, lr]
