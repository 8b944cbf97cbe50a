"""An exponential moving average of a model's weights: average = decay * average + (1 - decay) * weights, after each step."""

import copy

import torch
from torch import nn


class WeightAverage:
    """The average, as a model of its own. Running statistics are averaged alike; buffers of whole numbers are copied.

    Attributes:
        model: in evaluation mode, without gradients; it begins as a copy.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        """`decay` is from 0 to below 1; 0.999 averages over about the last thousand steps."""
        self._source = model
        self._decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self._averages: list[torch.Tensor] = list(self.model.parameters())
        self._weights: list[torch.Tensor] = list(model.parameters())

    @torch.no_grad()
    def update(self) -> None:
        """Take in the model as it is now."""
        torch._foreach_lerp_(self._averages, self._weights, 1 - self._decay)
        # Not kept in lists: a model may put new tensors in the place of its buffers.
        for average, buffer in zip(self.model.buffers(), self._source.buffers(), strict=True):
            if buffer.is_floating_point():
                average.lerp_(buffer, 1 - self._decay)
            else:
                average.copy_(buffer)
