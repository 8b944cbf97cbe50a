"""Batch normalization over several ranks: a group of consecutive ranks normalizes as one rank with their whole batch would.

    forward     each rank: count, sum and sum of squares of each channel  ─► one all-reduce inside the group ─► mean, variance
    backward    each rank: sums of the gradient, and of it times the normalized input ─► one all-reduce inside the group

Both all-reduces carry float32. The sums are taken about the running mean, which is the same on all ranks of a group, so that a variance
much smaller than the square of its mean loses no digits. Ranks count with the images that they have, also none. The gradients of gamma
and beta stay each rank's own part: they are summed over all ranks with the other gradients.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddltrain.comm.engine import Engine
from ddltrain.comm.world import World
from ddltrain.errors import RecipeError

Sum = Callable[[Tensor], Tensor]  # float32 [count] -> its sum over the group; collective


def check_group(size: int, world_size: int) -> None:
    """Raises RecipeError where groups of this size do not fill the world."""
    if world_size % size:
        raise RecipeError(
            f"bn.group = {size} does not divide the {world_size} ranks; start a multiple of {size} ranks, or set bn.group=1"
        )


class RankGroup:
    """The ranks that normalize together: `size` consecutive ones. Copies of a model share it."""

    def __init__(self, world: World, size: int, timeout_s: float) -> None:
        """Collective over all ranks."""
        comm = world.comm.Split(world.rank // size, world.rank)
        own = World(comm.rank, comm.size, world.local_rank, world.local_size, world.host, comm)
        self._engine = Engine(own, timeout_s=timeout_s)
        self._memory = torch.zeros(0)

    def reserve(self, count: int) -> None:
        """Make room for sums of up to `count` elements where the ranks of a host share memory. Collective over the group."""
        self._memory = self._engine.allocate(count * 4).view(torch.float32)

    def __call__(self, values: Tensor) -> Tensor:
        """The sum of `values`, float32 of one dimension, over the group. Collective over the group."""
        shared = self._memory[: len(values)]
        shared.copy_(values)
        return self._engine.allreduce_(shared, name="batch normalization").to(values.device, copy=True)

    def __deepcopy__(self, _: object) -> "RankGroup":
        return self


class GroupBatchNorm2d(nn.BatchNorm2d):
    """torch's BatchNorm2d, with the same names in its state dict, that normalizes over a group of ranks while it trains."""

    def __init__(self, like: nn.BatchNorm2d, group_sum: Sum) -> None:
        """Takes over the parameters and buffers of `like`."""
        super().__init__(like.num_features, like.eps, like.momentum, like.affine, like.track_running_stats)
        self.weight, self.bias = like.weight, like.bias
        self.running_mean, self.running_var = like.running_mean, like.running_var
        self.num_batches_tracked = like.num_batches_tracked
        self.training = like.training
        self._sum = group_sum

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # a compiler cannot look into the all-reduce
    def forward(self, input: Tensor) -> Tensor:
        """float [n, channels, height, width] -> the same, normalized; n may be 0. Collective over the group while it trains."""
        if not self.training:
            return super().forward(input)
        channels = self.num_features
        weight = self.weight if self.affine else torch.ones(channels, device=input.device)
        bias = self.bias if self.affine else torch.zeros(channels, device=input.device)
        about = self.running_mean if self.running_mean is not None else torch.zeros_like(weight)
        output, mean, variance, count = _Normalize.apply(
            input, weight, bias, about.detach(), self.eps, self._sum
        )
        if self.running_mean is not None and count:
            self._track(mean, variance, count)
        normalized: Tensor = output
        return normalized

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: float) -> None:
        """Move the running statistics, the variance without bias, as torch does."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        part = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, part)
        self.running_var.lerp_(variance * (count / max(count - 1, 1)), part)


class _Normalize(torch.autograd.Function):
    """(x - mean) / sqrt(variance + eps) * weight + bias, mean and variance being the group's."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, about: Tensor, eps: float, group_sum: Sum
    ) -> tuple[Tensor, Tensor, Tensor, float]:
        """Returns output, mean, biased variance and count; the last three are the group's."""
        num_values = x.numel() // len(weight)
        if num_values:
            own_variance, own_mean = torch.var_mean(x.float(), dim=(0, 2, 3), correction=0)
            offset = own_mean - about
            sums = num_values * torch.stack([offset, own_variance + offset.square()])
        else:
            sums = about.new_zeros(2, len(about))
        totals = group_sum(torch.cat([sums.flatten(), sums.new_tensor([num_values])]))
        count = totals[-1].item()
        offset, squares = (totals[:-1] / max(count, 1)).view(2, -1)
        mean, variance = about + offset, (squares - offset.square()).clamp_(min=0)
        ctx.save_for_backward(x, weight, mean, variance)
        ctx.eps, ctx.group_sum, ctx.count = eps, group_sum, count
        return _apply(x, weight, bias, mean, variance, eps), mean, variance, count

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: object) -> tuple[Tensor | None, ...]:
        x, weight, mean, variance = ctx.saved_tensors
        if x.numel():
            # What it were if mean and variance did not hang on x, and this rank's sums.
            through, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
                grad.contiguous(memory_format=_layout(x)),
                x,
                weight,
                mean,
                variance,
                None,
                None,
                False,
                ctx.eps,
                [True, True, True],
            )
        else:
            through, grad_weight, grad_bias = grad, torch.zeros_like(weight), torch.zeros_like(weight)
        totals = ctx.group_sum(torch.cat([grad_bias, grad_weight]))
        total_bias, total_weight = totals.view(2, -1) / max(ctx.count, 1)
        inverse = (variance + ctx.eps).rsqrt()
        slope, level = weight * inverse * inverse * total_weight, weight * inverse * total_bias
        back = (x.float() - _wide(mean)).mul_(_wide(slope)).add_(_wide(level))
        return torch.sub(through, back).to(x.dtype), grad_weight, grad_bias, None, None, None


def _apply(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, eps: float) -> Tensor:
    return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, eps) if x.numel() else x.clone()


def _wide(values: Tensor) -> Tensor:
    return values.view(1, -1, 1, 1)


def _layout(x: Tensor) -> torch.memory_format:
    return (
        torch.channels_last if x.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
    )


def normalize_over(model: nn.Module, group_sum: Sum) -> nn.Module:
    """Replace each BatchNorm2d in `model` by one over a group of ranks, with the same parameters and buffers.

    Returns:
        The model, or what has taken its place where it is itself a BatchNorm2d.
    """
    if type(model) is nn.BatchNorm2d:
        return GroupBatchNorm2d(model, group_sum)
    for name, child in model.named_children():
        setattr(model, name, normalize_over(child, group_sum))
    return model


def normalize_over_ranks(model: nn.Module, world: World, size: int, timeout_s: float) -> nn.Module:
    """Let groups of `size` consecutive ranks normalize together. Collective."""
    if size == 1:
        return model
    group = RankGroup(world, size, timeout_s)
    channels = [module.num_features for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    group.reserve(2 * max(channels, default=0) + 1)
    return normalize_over(model, group)
