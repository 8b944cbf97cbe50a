"""What 16 bits round away is kept, once, and given back: over many steps nothing is lost."""

import itertools
from collections.abc import Callable

import pytest
import torch
from bucket_steps import EXTRAS, gradients, make_net, own_gradients, run_step

from ddltrain.comm.buckets import Buckets
from ddltrain.comm.engine import Engine
from ddltrain.comm.local_sums import LocalSums
from ddltrain.comm.plans import PLANNERS
from ddltrain.comm.world import World

MESSAGE_PLANNERS = [name for name in PLANNERS if name != "shared_memory"]
NUM_STEPS = 4
CPU = torch.device("cpu")


def own_values(rank: int, step: int, count: int) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(10 * step + rank))


@pytest.fixture(scope="module", params=[0, 1, 2])
def engine(request: pytest.FixtureRequest, world: World) -> Engine:
    """Segments of 7 elements, and all ranks on one host, each on its own, or two on each."""
    return Engine(world, segment_bytes=14, timeout_s=60, ranks_per_host=request.param)


@pytest.mark.parametrize("wire", ["bf16", "fp16"])
@pytest.mark.parametrize("algorithm", [*MESSAGE_PLANNERS, "mpi", "auto"])
def test_results_and_residuals_add_up(engine: Engine, algorithm: str, wire: str) -> None:
    for count, in_window in itertools.product((1, engine.world_size + 1, 1009), (False, True)):
        residual = torch.zeros(count)
        tensor = engine.allocate(4 * count).view(torch.float32) if in_window else torch.zeros(count)
        exact, summed = torch.zeros(count, dtype=torch.float64), torch.zeros(count, dtype=torch.float64)
        for step in range(NUM_STEPS):
            tensor.copy_(own_values(engine.rank, step, count))
            exact += tensor
            if step % 2:
                engine.allreduce_(tensor, wire=wire, algorithm=algorithm, residual=residual)
            else:
                engine.allreduce_async(tensor, wire=wire, algorithm=algorithm, residual=residual).wait()
            summed += tensor
        kept = engine.allreduce_(residual.double(), algorithm="mpi")
        engine.allreduce_(exact, algorithm="mpi")
        torch.testing.assert_close(summed + kept, exact, rtol=1e-5, atol=1e-5)
        if count > 1000 and len(engine.topology.hosts) > 1 and algorithm in MESSAGE_PLANNERS:
            assert kept.abs().max() > 1e-4


def test_what_16_bits_cannot_hold_is_not_kept(engine: Engine) -> None:
    for value in (float("inf"), float("nan"), 1e30, -1e30):
        residual = torch.zeros(3)
        engine.allreduce_(torch.tensor([value, 1.0, 2.0]), wire="fp16", algorithm="ring", residual=residual)
        assert not residual.any()


def test_checked_results_hold_the_residual_too(world: World) -> None:
    engine = Engine(world, timeout_s=60, ranks_per_host=1, check=True)
    residual = torch.full((100,), 0.25)
    tensor = engine.allreduce_(torch.ones(100), wire="bf16", algorithm="ring", residual=residual)
    kept = 0.25 if world.world_size == 1 else 0.0
    assert torch.equal(residual, torch.full((100,), kept))
    assert torch.equal(tensor, torch.full((100,), world.world_size * (1.25 - kept)))


def test_gradients_add_up_with_buckets(engine: Engine) -> None:
    check_buckets(engine, lambda: None)


def test_gradients_add_up_with_local_sums(world: World) -> None:
    if world.world_size != 4:
        pytest.skip("needs two hosts of two ranks")
    engine = Engine(world, timeout_s=60, ranks_per_host=2)
    check_buckets(engine, lambda: LocalSums(engine, CPU, 60))


def check_buckets(engine: Engine, make_local: Callable[[], LocalSums | None]) -> None:
    def results(error_feedback: bool) -> list[torch.Tensor]:
        net = make_net()
        buckets = Buckets(net, engine, 2000, len(EXTRAS), "bf16", make_local(), error_feedback)
        sums = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in net.parameters()]
        for step in range(NUM_STEPS):
            run_step(net, buckets, engine.rank, step)
            torch._foreach_add_(sums, [gradient.double() for gradient in gradients(net)])
        buckets.drop_residuals()  # so that the last step is the first again
        run_step(net, buckets, engine.rank, 0)
        fresh = torch.cat([gradient.flatten() for gradient in gradients(net)])
        buckets.drop_residuals()
        run_step(net, buckets, engine.rank, 0)
        assert torch.equal(torch.cat([gradient.flatten() for gradient in gradients(net)]), fresh)
        return sums

    parts = [
        own_gradients(rank, step)
        for rank, step in itertools.product(range(engine.world_size), range(NUM_STEPS))
    ]
    exact = [torch.stack(own).double().sum(0) for own in zip(*parts, strict=True)]
    plain, fed = (distance(results(feeds), exact) for feeds in (False, True))
    assert fed <= plain  # all that is missing is what the last step rounded away
    if len(engine.topology.hosts) > 1 and engine.has_windows:
        assert fed < 0.8 * plain


def distance(found: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    return float(sum((own - wanted).square().sum() for own, wanted in zip(found, exact, strict=True)) ** 0.5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"residual": torch.zeros(3)}, "must be a contiguous CPU tensor like the one to sum"),
        ({"residual": torch.zeros(4, dtype=torch.float64)}, "must be a contiguous CPU tensor"),
        ({"residual": torch.zeros(4), "op": "avg"}, "goes with sums of float32, not with op = 'avg'"),
    ],
)
def test_a_residual_that_does_not_fit(engine: Engine, wrong: dict[str, object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        engine.allreduce_(torch.zeros(4), wire="bf16", **wrong)  # type: ignore[arg-type]
