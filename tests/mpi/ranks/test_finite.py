"""A step that is not finite on one rank is found on all of them, and traced to that rank and its layer."""

import pytest
import torch
from torch import nn

from ddltrain.comm.buckets import Buckets
from ddltrain.comm.engine import Engine
from ddltrain.comm.world import World
from ddltrain.errors import DivergedError
from ddltrain.train.finite import FiniteCheck, gather_texts


class Sick(torch.autograd.Function):
    """The identity, whose gradient is not a number."""

    @staticmethod
    def forward(context: object, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(context: object, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * float("nan")


class Net(nn.Module):
    """Two layers between which something may go wrong, in a forward or a backward pass."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.norm, self.second = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.trouble = ""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        hidden = self.first(values)
        if self.trouble == "backward":
            hidden = Sick.apply(hidden)  # type: ignore[no-untyped-call]
        hidden = self.norm(hidden)
        if self.trouble == "forward":
            hidden = hidden / 0
        return self.second(hidden)  # type: ignore[no-any-return]


class Setup:
    def __init__(self, engine: Engine, policy: str) -> None:
        self.model = Net()
        self.engine = engine
        self.buckets = Buckets(self.model, engine, 40, 3)
        self.check = FiniteCheck(self.model, engine, policy)

    def backward(self) -> None:
        rows = torch.arange(20.0).view(5, 4) + self.engine.rank
        self.model(rows).square().sum().backward()

    def step(self, trouble: str) -> str | None:
        """What was wrong with a step in which the last rank is in trouble."""
        self.model.trouble = trouble if self.engine.rank == self.engine.world_size - 1 else ""
        self.check.before_step()
        self.buckets.zero_()
        self.backward()
        self.buckets.allreduce_()
        return None if self.check.holds(self.buckets.flat) else self.check.undo(7, 0.1, self.again)

    def again(self) -> None:
        self.buckets.zero_()
        self.buckets.holds_back = True
        self.backward()


def test_a_healthy_step_passes(engine: Engine) -> None:
    assert Setup(engine, "stop").step("") is None


@pytest.mark.parametrize(
    ("trouble", "where"), [("forward", "output of second"), ("backward", "gradient of first")]
)
def test_the_rank_and_the_layer_are_named_on_all_ranks(engine: Engine, trouble: str, where: str) -> None:
    with pytest.raises(
        DivergedError, match=f"at step 7.*rank {engine.world_size - 1} on host .*{where}"
    ) as caught:
        Setup(engine, "stop").step(trouble)
    assert caught.value.on_all_ranks
    assert len(set(gather_texts(engine, str(caught.value)[:200]))) == 1


def test_a_skipped_step_leaves_no_trace(engine: Engine) -> None:
    setup = Setup(engine, "skip")
    assert setup.step("") is None
    before = {name: value.clone() for name, value in setup.model.state_dict().items()}
    what = setup.step("forward")
    assert what is not None
    assert f"rank {engine.world_size - 1}" in what
    after = setup.model.state_dict()
    assert [name for name in before if not torch.equal(before[name], after[name])] == []


def test_skipping_has_an_end(engine: Engine) -> None:
    setup = Setup(engine, "skip")
    for _ in range(10):
        assert setup.step("backward") is not None
    assert setup.step("") is None  # counts only those in a row
    for _ in range(10):
        assert setup.step("backward") is not None
    with pytest.raises(DivergedError, match="10 steps in a row"):
        setup.step("backward")


def test_texts_come_from_all_ranks(engine: Engine, world: World) -> None:
    assert gather_texts(engine, f"ü{world.rank}") == [f"ü{rank}" for rank in range(world.world_size)]
