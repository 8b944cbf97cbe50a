"""Buckets summed by torch.distributed (Gloo) inside hosts and by the engine between them, against the engine alone."""

import pytest
import torch
from bucket_steps import EXTRAS, check_step, gradients, make_net, run_step

from ddltrain.comm.buckets import Buckets
from ddltrain.comm.collectives import ACROSS
from ddltrain.comm.engine import Engine
from ddltrain.comm.handle import Handle
from ddltrain.comm.local_sums import LocalSums, Memory, obstacle
from ddltrain.comm.world import World
from ddltrain.errors import CommError
from ddltrain.recipe import parse_recipe
from ddltrain.train.setup import local_notes, make_buckets

CPU = torch.device("cpu")
RECIPE = """
[model]
name = "resnet20"
[train]
epochs = 1
batch_per_rank = 1
[optim]
lr_base = 1
[schedule]
kind = "cosine"
[comm]
local = "torch"
bucket_mib = 0.002
"""


def engines(world: World) -> list[Engine]:
    """All ranks on one host, and on the most hosts that have equally many ranks, several."""
    sizes = [size for size in range(2, world.world_size + 1) if world.world_size % size == 0]
    return [
        Engine(world, ranks_per_host=size, timeout_s=60) for size in dict.fromkeys((*sizes[:1], *sizes[-1:]))
    ]


@pytest.mark.parametrize(("bucket_bytes", "wire"), [(1, None), (2000, "bf16"), (1 << 20, None)])
def test_sums_are_those_of_the_engine_and_equal_on_all_ranks(
    world: World, bucket_bytes: int, wire: str | None
) -> None:
    for engine in engines(world):
        net = make_net()
        buckets = Buckets(net, engine, bucket_bytes, len(EXTRAS), wire, LocalSums(engine, CPU, 60))
        for step in range(4):
            run_step(net, buckets, engine.rank, step)
            check_step(net, buckets, engine, step, tolerance=0.02 if wire else 1e-5)
            flat = torch.cat(buckets.flat)
            assert torch.equal(engine.broadcast_(flat.clone()), flat)
        assert buckets.comm_s > 0
        assert f"gloo on the {len(engine.topology.hosts[0])} ranks of a host" in buckets.way(0).words()
        buckets.zero_()
        assert not any(gradient.any() for gradient in gradients(net))


def names_of(local: LocalSums, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The buckets that are begun from now on."""
    names: list[str] = []
    begin = local.submit

    def recorded(memory: Memory, wire: str | None, name: str) -> Handle:
        names.append(name)
        return begin(memory, wire, name)

    monkeypatch.setattr(local, "submit", recorded)
    return names


def test_buckets_begin_in_backward(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for engine in engines(world):
        local = LocalSums(engine, CPU, 60)
        net = make_net()
        buckets = Buckets(net, engine, 1, len(EXTRAS), local=local)
        run_step(net, buckets, engine.rank, 0)
        names = names_of(local, monkeypatch)
        buckets.zero_()
        net(torch.ones(1, 3, 12, 12), uses_all=True).sum().backward()
        assert len(names) == 9  # all but that with the extras
        assert world.comm.allgather(names) == [names] * world.world_size
        buckets.allreduce_()
        assert 0 < buckets.exposed_s <= buckets.comm_s


def test_across_sums_over_equal_places(world: World) -> None:
    for engine in engines(world):
        own = torch.arange(37.0) * (engine.rank + 1)
        engine.allreduce_async(own, algorithm=ACROSS).wait()
        hosts = engine.topology.hosts
        place = hosts[engine.topology.host_of(engine.rank)].index(engine.rank)
        assert torch.equal(own, torch.arange(37.0) * sum(host[place] + 1 for host in hosts))


def test_unequal_hosts_are_left_to_the_engine(world: World) -> None:
    config = parse_recipe(RECIPE, "test")
    engine = Engine(world, ranks_per_host=2, timeout_s=60)
    buckets = make_buckets(config, make_net(), engine, len(EXTRAS))
    uneven = world.world_size % 2 == 1
    assert buckets.is_local == (not uneven)
    notes = local_notes(config, engine, CPU)
    assert len(notes) == int(uneven and world.world_size > 1)
    assert all("hosts have unequal numbers of ranks" in note for note in notes)
    engine_alone = parse_recipe(RECIPE, "test", ["comm.local=auto"])
    assert not make_buckets(engine_alone, make_net(), engine, len(EXTRAS)).is_local


def test_a_rank_that_does_not_come_is_named(world: World) -> None:
    if world.world_size == 1:
        return
    engine = Engine(world, timeout_s=60)
    assert obstacle(engine, CPU) == ""
    local = LocalSums(engine, CPU, timeout_s=1)
    memory = local.memory(10)
    late = world.world_size - 1
    if world.rank != late:
        with pytest.raises(CommError, match=rf"'bucket 3' inside the host waits for rank {late}: "):
            local.submit(memory, None, "bucket 3").wait()
    engine.barrier()
