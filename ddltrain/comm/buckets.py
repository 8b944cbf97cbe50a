"""Gradients in flat buckets, the unit that is handed to an all-reduce.

    parameters in reverse order (about the order in which backward finishes them)
    [ fc.bias fc.weight layer4... ][ ...layer2... ][ ...conv1.weight | extras ]
      bucket 0                       bucket 1        bucket 2

Every parameter's `.grad` is a view of its bucket, so backward writes where the all-reduce reads, and nothing is copied. The last
bucket ends in a few extra numbers (the step's loss, counts and the stop flag), which so cost no message of their own.
"""

import torch
from torch import nn

from ddltrain.comm.engine import Engine


class Buckets:
    """Owns the gradients of a model and sums them over ranks.

    Attributes:
        extras: float32 [num_extras], summed along with the gradients; sums of counts are exact up to 2^24.
    """

    def __init__(self, model: nn.Module, engine: Engine, bucket_bytes: int, num_extras: int) -> None:
        """Collective: on the CPU the buckets lie in memory that the ranks of a host share."""
        parameters = [
            parameter for parameter in reversed(list(model.parameters())) if parameter.requires_grad
        ]
        groups: list[list[nn.Parameter]] = [[]]
        filled_bytes = 0
        for parameter in parameters:
            size_bytes = parameter.numel() * 4
            if groups[-1] and filled_bytes + size_bytes > bucket_bytes:
                groups.append([])
                filled_bytes = 0
            groups[-1].append(parameter)
            filled_bytes += size_bytes
        counts = [sum(parameter.numel() for parameter in group) for group in groups]
        device = parameters[0].device if parameters else torch.device("cpu")
        self.flat = [
            _zeros(count + (num_extras if group is groups[-1] else 0), device, engine)
            for group, count in zip(groups, counts, strict=True)
        ]
        self.extras = self.flat[-1][counts[-1] :]
        for bucket, group in zip(self.flat, groups, strict=True):
            _point_gradients_into(bucket, group)

    def zero_(self) -> None:
        """Set all gradients and extras to zero."""
        torch._foreach_zero_(self.flat)

    def allreduce_(self, engine: Engine) -> None:
        """Replace gradients and extras by their sums over all ranks. Collective."""
        for index, bucket in enumerate(self.flat):
            engine.allreduce_(bucket, name=f"bucket {index}")


def _zeros(count: int, device: torch.device, engine: Engine) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(count, device=device)
    return engine.allocate(count * 4).view(torch.float32)


def _point_gradients_into(bucket: torch.Tensor, parameters: list[nn.Parameter]) -> None:
    offset = 0
    for parameter in parameters:
        # The parameter's own strides, so that a channels_last weight gets a gradient of the same layout.
        parameter.grad = bucket.as_strided(parameter.shape, parameter.stride(), offset)
        offset += parameter.numel()
