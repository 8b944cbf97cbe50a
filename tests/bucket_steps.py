"""Steps of a small network whose gradients lie in buckets, and what they must give."""

import torch
from torch import nn

from ddltrain.comm.buckets import Buckets
from ddltrain.comm.engine import Engine

EXTRAS = [1.0, 3.0]


class Net(nn.Module):
    """Layers that are used in another order than they are registered in, and one that only some steps use."""

    def __init__(self) -> None:
        super().__init__()
        self.third = nn.Conv2d(8, 8, 3)
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.seldom = nn.Linear(8, 8)
        self.last = nn.Linear(8, 5)
        self.second = nn.Conv2d(8, 8, 3, stride=2)

    def forward(self, images: torch.Tensor, uses_all: bool) -> torch.Tensor:
        features = self.third(self.second(self.first(images).relu()).relu()).mean((2, 3))
        if uses_all:
            features = self.seldom(features)
        scores: torch.Tensor = self.last(features)
        return scores


def make_net() -> Net:
    torch.manual_seed(1)
    return Net().to(memory_format=torch.channels_last)


def images(rank: int, step: int) -> torch.Tensor:
    return torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(100 * step + rank))


def loss_of(net: Net, rank: int, step: int) -> torch.Tensor:
    return net(images(rank, step), uses_all=step != 1).square().sum()


def has_images(rank: int, step: int) -> bool:
    """In step 2 there are fewer images than ranks."""
    return step != 2 or rank == 0


def own_gradients(rank: int, step: int) -> list[torch.Tensor]:
    """What one rank brings, in the order of the parameters."""
    net = make_net()
    parameters = list(net.parameters())
    if not has_images(rank, step):
        return [torch.zeros_like(parameter) for parameter in parameters]
    found = torch.autograd.grad(loss_of(net, rank, step), parameters, materialize_grads=True)
    return list(found)


def run_step(net: Net, buckets: Buckets, rank: int, step: int) -> None:
    buckets.zero_()
    if has_images(rank, step):
        loss_of(net, rank, step).backward()
    buckets.extras[:] = torch.tensor(EXTRAS) * (rank + 1)
    buckets.allreduce_()


def gradients(net: Net) -> list[torch.Tensor]:
    return [parameter.grad for parameter in net.parameters() if parameter.grad is not None]


def check_step(net: Net, buckets: Buckets, engine: Engine, step: int, tolerance: float = 1e-5) -> None:
    """Every gradient is the sum over ranks, lies in memory as its parameter does, and the extras are exact."""
    total = engine.world_size * (engine.world_size + 1) // 2
    assert buckets.extras.tolist() == [value * total for value in EXTRAS]
    everyones = [own_gradients(rank, step) for rank in range(engine.world_size)]
    for parameter, gradient, *parts in zip(net.parameters(), gradients(net), *everyones, strict=True):
        assert gradient.stride() == parameter.stride()
        wanted = torch.stack(parts).double().sum(0)
        scale = float(wanted.abs().max())
        torch.testing.assert_close(gradient.double(), wanted, rtol=tolerance, atol=tolerance * scale)
