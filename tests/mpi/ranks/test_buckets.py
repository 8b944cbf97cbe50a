"""Gradients summed while backward goes on, against gradients summed one by one."""

import time

import pytest
import torch
from bucket_steps import EXTRAS, check_step, gradients, loss_of, make_net, own_gradients, run_step

from ddltrain.comm.buckets import Buckets
from ddltrain.comm.engine import Engine
from ddltrain.comm.plans import PLANNERS
from ddltrain.comm.world import World

MESSAGE_PLANNERS = [name for name in PLANNERS if name != "shared_memory"]


@pytest.fixture(scope="module", params=["one host", "several hosts"])
def either(request: pytest.FixtureRequest, world: World) -> Engine:
    """An engine of one host, or with every rank on a host of its own."""
    return Engine(world, ranks_per_host=int(request.param == "several hosts"), timeout_s=60)


@pytest.mark.parametrize("bucket_bytes", [1, 2000, 1 << 20])
def test_sums_in_steps_with_unused_parameters_and_idle_ranks(either: Engine, bucket_bytes: int) -> None:
    net = make_net()
    buckets = Buckets(net, either, bucket_bytes, len(EXTRAS))
    assert len(buckets.flat) == {1: 10, 2000: 4, 1 << 20: 1}[bucket_bytes]
    for step in range(4):
        run_step(net, buckets, either.rank, step)
        check_step(net, buckets, either, step)
    buckets.zero_()
    assert not any(gradient.any() for gradient in gradients(net))


@pytest.mark.parametrize("wire", ["bf16", "fp16"])
def test_16_bits_are_for_gradients_only(world: World, either: Engine, wire: str) -> None:
    net = make_net()
    buckets = Buckets(net, either, 2000, len(EXTRAS), wire)
    assert buckets.wires == [*[wire] * 4, None]
    for step in range(3):
        run_step(net, buckets, either.rank, step)
        check_step(net, buckets, either, step, tolerance=0.02)
        flat = torch.cat(buckets.flat)
        assert torch.equal(either.broadcast_(flat.clone()), flat)
    if len(either.topology.hosts) > 1:
        gradient = gradients(net)[0]
        assert torch.equal(gradient, gradient.to(torch.bfloat16 if wire == "bf16" else torch.float16).float())


@pytest.mark.parametrize("algorithm", [*MESSAGE_PLANNERS, "mpi"])
def test_all_reduces_in_backward_give_the_bits_of_those_after_it(
    world: World, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(world, algorithm=algorithm, ranks_per_host=1, timeout_s=60)

    def results() -> list[torch.Tensor]:
        net = make_net()
        buckets = Buckets(net, engine, 1000, len(EXTRAS))
        kept = []
        for step in range(4):
            run_step(net, buckets, engine.rank, step)
            kept += [bucket.clone() for bucket in buckets.flat]
        return kept

    together = results()
    monkeypatch.setattr(engine, "overlaps", lambda *_: False)
    assert all(map(torch.equal, together, results()))


def calls_of(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the all-reduces that are begun from now on."""
    calls: list[str] = []
    begin = engine.allreduce_async

    def recorded(tensor: torch.Tensor, name: str, **options: str | None) -> object:
        calls.append(name)
        return begin(tensor, name=name, **options)

    monkeypatch.setattr(engine, "allreduce_async", recorded)
    return calls


def test_ranks_begin_buckets_in_one_order_and_in_backward(
    world: World, either: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    if world.world_size == 1:
        return
    net = make_net()
    buckets = Buckets(net, either, 1, len(EXTRAS))  # one parameter each, in reverse order of registration
    calls = calls_of(either, monkeypatch)
    in_order = [f"bucket {index}" for index in range(10)]
    run_step(net, buckets, either.rank, 0)
    assert calls == in_order
    # last, seldom, third, second, first; the bucket with the extras, third.weight, at the end.
    used = [f"bucket {index}" for index in (2, 3, 4, 5, 8, 0, 1, 6, 7, 9)]
    for step in (3, 2, 1):
        calls.clear()
        run_step(net, buckets, either.rank, step)
        assert sorted(calls) == sorted(in_order)
        assert world.comm.allgather(calls) == [calls] * world.world_size
        by_layer = [{calls[place], calls[place + 1]} for place in (0, 2, 5, 7)]
        assert by_layer == [{used[place], used[place + 1]} for place in (0, 2, 5, 7)]
    calls.clear()
    buckets.zero_()
    loss_of(net, either.rank, 0).backward()
    assert len(calls) == 9  # all but that with the extras
    buckets.allreduce_()
    assert 0 <= buckets.exposed_s <= buckets.comm_s


def test_one_rank_has_no_hooks(alone: World) -> None:
    net = make_net()
    buckets = Buckets(net, Engine(alone), 2000, len(EXTRAS))
    assert not any(parameter._post_accumulate_grad_hooks for parameter in net.parameters())  # type: ignore[attr-defined]
    run_step(net, buckets, 0, 0)
    assert all(map(torch.equal, gradients(net), own_gradients(0, 0)))


def test_the_engine_tells_when_each_bucket_was_under_way(world: World) -> None:
    engine = Engine(world, timeout_s=60)
    net = make_net()
    buckets = Buckets(net, engine, 600, 1)

    def step() -> tuple[int, int]:
        start_ns = time.perf_counter_ns()
        buckets.zero_()
        loss_of(net, engine.rank, 0).backward()
        buckets.allreduce_()
        return start_ns, time.perf_counter_ns()

    step()
    assert engine.take_spans() == []  # nobody asked for them
    engine.keep_spans(len(buckets.flat) + 1)
    start_ns, end_ns = step()
    spans = engine.take_spans()
    if world.world_size == 1:
        assert spans == []
        return
    assert sorted(name for name, _, _ in spans) == [f"bucket {index}" for index in range(len(buckets.flat))]
    assert all(start_ns < start < end < end_ns for _, start, end in spans)
    step()
    step()
    assert len(engine.take_spans()) == len(buckets.flat) + 1  # no more are kept
