"""Gradient descent with momentum in the forms that torch's SGD does not have: LARS, the rate inside the velocity, RMSprop in part.

    g = gradient + weight_decay * w
    g = g * trust * |w| / (|gradient| + weight_decay * |w|)        LARS, for each tensor (You, Gitman, Ginsburg 2017)
    g = g * (share + (1 - share) * rmsprop_lr / lr / (sqrt(m) + eps))     RMSprop in part (Akiba, Suzuki, Fukuda 2017)
    v = momentum * v + lr * g        w = w - v                     the published form of LARS
    v = momentum * v + g             w = w - lr * v                with momentum correction (Goyal et al. 2017)

The last two lines differ only where the rate changes: a velocity that holds old rates is out of date by their ratio, and a rate that
multiplies the velocity as a whole needs no correction. Nesterov's method takes momentum * v + the new part in place of v.

All arithmetic is done on lists of tensors at once (torch's foreach operations).
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

# Of the mean square in RMSprop, and what keeps its root off zero (Akiba et al. 2017).
_SQUARE_DECAY = 0.99
_EPS = 1e-8


class Momentum(torch.optim.Optimizer):
    """See the top of this module. Every parameter must have a gradient with its own strides.

    A group's `trust` is LARS's trust coefficient, or None for tensors that take the rate as it is. `rmsprop_share` in every group is how
    much of the step is RMSprop's, from 0 to 1; it may change from step to step like `lr`.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        momentum: float,
        nesterov: bool,
        momentum_correction: bool,
        rmsprop_lr: float | None = None,
    ) -> None:
        """The rate is 0 until it is set.

        Args:
            groups: dicts of params, weight_decay and trust.
            rmsprop_lr: the rate of RMSprop, or None where it has no part in the steps.
        """
        defaults = {
            "lr": 0.0,
            "momentum": momentum,
            "nesterov": nesterov,
            "momentum_correction": momentum_correction,
            "rmsprop_lr": rmsprop_lr,
            "rmsprop_share": 0.0,
        }
        super().__init__(groups, defaults)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
                if rmsprop_lr is not None:
                    self.state[parameter]["square_average"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter; `closure` is not used."""
        for group in self.param_groups:
            if group["params"]:
                self._step_group(group)

    def _step_group(self, group: dict[str, Any]) -> None:
        weights, lr, momentum = group["params"], group["lr"], group["momentum"]
        gradients = [weight.grad for weight in weights]
        velocities = [self.state[weight]["momentum_buffer"] for weight in weights]
        change = torch._foreach_add(gradients, weights, alpha=group["weight_decay"])
        if group["trust"] is not None:
            ratios = trust_ratios(weights, gradients, group["trust"], group["weight_decay"])
            torch._foreach_mul_(change, ratios)
        if group["rmsprop_lr"] is not None:
            self._scale_by_rmsprop(group, change)
        inside, outside = (1.0, lr) if group["momentum_correction"] else (lr, 1.0)
        torch._foreach_mul_(velocities, momentum)
        torch._foreach_add_(velocities, change, alpha=inside)
        torch._foreach_add_(weights, velocities, alpha=-outside * (momentum if group["nesterov"] else 1.0))
        if group["nesterov"]:
            torch._foreach_add_(weights, change, alpha=-outside * inside)

    def _scale_by_rmsprop(self, group: dict[str, Any], change: tuple[Tensor, ...]) -> None:
        """The mean square is kept up as long as RMSprop has a part, also while that is small."""
        share = group["rmsprop_share"]
        if share == 0:
            return
        squares = [self.state[weight]["square_average"] for weight in group["params"]]
        torch._foreach_mul_(squares, _SQUARE_DECAY)
        torch._foreach_addcmul_(squares, change, change, value=1 - _SQUARE_DECAY)
        factors = torch._foreach_sqrt(squares)
        torch._foreach_add_(factors, _EPS)
        torch._foreach_reciprocal_(factors)
        torch._foreach_mul_(factors, share * group["rmsprop_lr"] / group["lr"] if group["lr"] else 0.0)
        torch._foreach_add_(factors, 1 - share)
        torch._foreach_mul_(change, factors)


def trust_ratios(
    weights: list[Tensor], gradients: list[Tensor], trust: float, weight_decay: float
) -> tuple[Tensor, ...]:
    """LARS's local rate of each tensor, as tensors without dimensions.

    1 where the formula gives nothing to go by: for weights that are all zero, which would never move, and for a gradient and a decay of 0.
    """
    weight_norms = torch.stack(torch._foreach_norm(weights))
    below = torch.stack(torch._foreach_norm(gradients)) + weight_decay * weight_norms
    ratios = trust * weight_norms / below
    return torch.where((weight_norms > 0) & (below > 0), ratios, 1.0).unbind()
