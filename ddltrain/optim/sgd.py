"""Stochastic gradient descent with momentum, as torch computes it.

    g = gradient + weight_decay * w
    v = momentum * v + g                     (v = g at the first step)
    w = w - lr * (g + momentum * v)          with Nesterov's method
    w = w - lr * v                           without

The rate multiplies the velocity where it is applied, so that a change of the rate needs no correction of the
momentum (Goyal et al. 2017). Weight decay spares parameters of one dimension: batch normalization's gamma and
beta, and biases.
"""

import torch
from torch import nn

from ddltrain.recipe import OptimRecipe

FUSED_DEVICES = ("cpu", "cuda")


def make_optimizer(model: nn.Module, recipe: OptimRecipe) -> torch.optim.SGD:
    """Build the optimizer of a model's trainable parameters, in two groups: with and without weight decay.

    Its learning rate is 0 until `set_learning_rate` is called. A gradient must have its parameter's
    strides: torch's fused step on the CPU goes by memory order alone.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    fused = all(p.device.type in FUSED_DEVICES and p.is_floating_point() for p in parameters)
    return torch.optim.SGD(
        groups, lr=0.0, momentum=recipe.momentum, nesterov=recipe.nesterov, fused=fused, foreach=not fused
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the rate of the next step in every group."""
    for group in optimizer.param_groups:
        group["lr"] = lr
