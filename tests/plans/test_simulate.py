"""Simulated times against what one can work out by hand."""

import pytest

from ddltrain.comm.plans import PLANNERS
from ddltrain.comm.plans.hierarchical import hierarchical
from ddltrain.comm.simulate import Cost, floor_s, simulate
from ddltrain.comm.topology import Topology

# 1 us for an element of 4 bytes on the wire; memory is free but in the last tests.
WIRE = Cost(latency_s=0.0, rate_bytes_per_s=4e6, memory_bytes_per_s=float("inf"))
FAR = Cost(latency_s=1.0, rate_bytes_per_s=float("inf"), memory_bytes_per_s=float("inf"))
MEMORY = Cost(latency_s=0.0, rate_bytes_per_s=float("inf"), memory_bytes_per_s=4e6)


@pytest.mark.parametrize("algorithm", ["ring", "multiring", "torus2d", "halving_doubling", "hierarchical"])
def test_bandwidth_is_all_used(algorithm: str) -> None:
    plan = PLANNERS[algorithm](Topology.flat(4), 80_000, 500)
    assert floor_s(plan, WIRE) == pytest.approx(0.12)
    assert simulate(plan, WIRE) == pytest.approx(0.12, rel=0.02)


def test_trees_fill_the_links_but_for_their_ends() -> None:
    plan = PLANNERS["multicolor"](Topology.flat(8), 800_000, 500)
    assert 1.4 <= simulate(plan, WIRE) < 1.4 * 1.03


@pytest.mark.parametrize(
    ("algorithm", "latencies"),
    [("ring", 14), ("multicolor", 4), ("torus2d", 8), ("halving_doubling", 3), ("hierarchical", 14)],
)
def test_latency_counts_rounds(algorithm: str, latencies: int) -> None:
    plan = PLANNERS[algorithm](Topology.flat(8), 8, 1000)
    assert simulate(plan, FAR) == pytest.approx(latencies)
    assert plan.num_rounds == latencies


def test_shared_memory_reads_and_writes_once() -> None:
    plan = PLANNERS["shared_memory"](Topology.of_sizes((4,)), 1000, 100)
    assert simulate(plan, MEMORY) == pytest.approx(2 * 4 * 1000 * 1e-6) == floor_s(plan, MEMORY)


def test_adding_what_came_takes_memory() -> None:
    plan = PLANNERS["ring"](Topology.flat(2), 1000, 1000)
    assert simulate(plan, MEMORY) == pytest.approx(3 * 500 * 1e-6)


def test_ranks_of_a_host_share_its_card() -> None:
    plan = hierarchical(Topology.of_sizes((2, 2)), 20_000, 100, windows=True)
    assert simulate(plan, WIRE) == pytest.approx(0.02, rel=0.02)
    flat = PLANNERS["halving_doubling"](Topology(((0, 2), (1, 3))), 20_000, 100)
    assert simulate(flat, WIRE) == pytest.approx(0.02, rel=0.02)


def test_nothing_takes_no_time() -> None:
    assert simulate(PLANNERS["ring"](Topology.flat(4), 0, 10), WIRE) == 0
    assert simulate(PLANNERS["ring"](Topology.flat(1), 10, 10), WIRE) == 0
