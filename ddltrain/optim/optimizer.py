"""From a recipe to an optimizer.

    optim.kind   momentum_correction   what runs
    sgd          true                  torch's fused SGD
    sgd          false                 Momentum, the rate inside the velocity
    lars         either                Momentum, with a trust ratio for each tensor

Stochastic gradient descent as torch computes it:

    g = gradient + weight_decay * w
    v = momentum * v + g                     (v = g at the first step)
    w = w - lr * (g + momentum * v)          with Nesterov's method
    w = w - lr * v                           without

The rate multiplies the velocity where it is applied, so that a change of the rate needs no correction of the momentum (Goyal et al. 2017).
Weight decay and trust ratios spare parameters of one dimension: batch normalization's gamma and beta, and biases.
"""

import torch
from torch import nn

from ddltrain.optim.momentum import Momentum
from ddltrain.recipe import OptimRecipe

FUSED_DEVICES = ("cpu", "cuda")


def make_optimizer(
    model: nn.Module, recipe: OptimRecipe, rmsprop_lr: float | None = None
) -> torch.optim.Optimizer:
    """Build the optimizer of a model's trainable parameters, in two groups: with and without weight decay.

    Its learning rate is 0 until `set_learning_rate` is called. A gradient must have its parameter's
    strides: torch's fused step on the CPU goes by memory order alone.

    Args:
        rmsprop_lr: the rate of RMSprop where it has a part in the first steps, else None.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    trust = recipe.trust if recipe.kind == "lars" else None
    decayed = {
        "params": [p for p in parameters if p.ndim > 1],
        "weight_decay": recipe.weight_decay,
        "trust": trust,
    }
    spared = {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0, "trust": None}
    if trust is not None or rmsprop_lr is not None or not recipe.momentum_correction:
        return Momentum(
            [decayed, spared], recipe.momentum, recipe.nesterov, recipe.momentum_correction, rmsprop_lr
        )
    fused = all(p.device.type in FUSED_DEVICES and p.is_floating_point() for p in parameters)
    groups = [
        {name: value for name, value in group.items() if name != "trust"} for group in (decayed, spared)
    ]
    return torch.optim.SGD(
        groups, lr=0.0, momentum=recipe.momentum, nesterov=recipe.nesterov, fused=fused, foreach=not fused
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float, rmsprop_share: float = 0.0) -> None:
    """Set the rate of the next step in every group, and RMSprop's part in it."""
    for group in optimizer.param_groups:
        group["lr"] = lr
        if "rmsprop_share" in group:
            group["rmsprop_share"] = rmsprop_share
