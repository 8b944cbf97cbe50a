"""Every planner, for any world, any hosts and any count, makes a plan that the verifier proves."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ddltrain.comm.plans import PLANNERS, Plan
from ddltrain.comm.plans.hierarchical import ACROSS, hierarchical
from ddltrain.comm.plans.multicolor import multicolor
from ddltrain.comm.plans.multiring import multiring
from ddltrain.comm.plans.plan import COUNT, KIND, OFFSET, PHASE, Kind, check_sizes, cut, merge, rows, split
from ddltrain.comm.plans.torus2d import torus2d
from ddltrain.comm.topology import Topology
from ddltrain.comm.verify import verify
from ddltrain.errors import CommError

MESSAGES = sorted(set(PLANNERS) - {"shared_memory"})
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def special_counts(world_size: int) -> list[int]:
    return sorted({0, 1, world_size - 1, world_size, world_size + 1, 97})


@st.composite
def hosts(draw: st.DrawFn, most: int) -> Topology:
    """Up to `most` ranks, in any order, on hosts of unequal sizes."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=most // 5))
    ranks = draw(st.permutations(range(sum(sizes))))
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return Topology(
        tuple(tuple(ranks[start : start + size]) for start, size in zip(starts, sizes, strict=True))
    )


@pytest.mark.parametrize("algorithm", MESSAGES)
@quick
@given(data=st.data(), world_size=st.integers(1, 33), segment_count=st.sampled_from([1, 7, 1000]))
def test_flat(algorithm: str, data: st.DataObject, world_size: int, segment_count: int) -> None:
    count = data.draw(st.sampled_from(special_counts(world_size)))
    verify(PLANNERS[algorithm](Topology.flat(world_size), count, segment_count))


@pytest.mark.parametrize("algorithm", MESSAGES)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(world_size=st.integers(34, 64))
@example(world_size=47)
@example(world_size=64)
def test_large_worlds(algorithm: str, world_size: int) -> None:
    verify(PLANNERS[algorithm](Topology.flat(world_size), 131, 1000))


@pytest.mark.parametrize("algorithm", MESSAGES)
@quick
@given(topology=hosts(most=20), count=st.integers(0, 60), segment_count=st.integers(1, 20))
def test_unequal_hosts(algorithm: str, topology: Topology, count: int, segment_count: int) -> None:
    verify(PLANNERS[algorithm](topology, count, segment_count))


@pytest.mark.parametrize("across", sorted(ACROSS))
@quick
@given(topology=hosts(most=25), count=st.integers(0, 60), segment_count=st.integers(1, 20))
def test_windows(across: str, topology: Topology, count: int, segment_count: int) -> None:
    verify(hierarchical(topology, count, segment_count, windows=True, across=across))


@quick
@given(size=st.integers(1, 16), count=st.integers(0, 60), segment_count=st.integers(1, 20))
def test_shared_memory(size: int, count: int, segment_count: int) -> None:
    verify(PLANNERS["shared_memory"](Topology.of_sizes((size,)), count, segment_count))


@pytest.mark.parametrize("algorithm", MESSAGES)
def test_many_segments(algorithm: str) -> None:
    verify(PLANNERS[algorithm](Topology.flat(6), 5003, 11))


@quick
@given(
    dims=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    data=st.data(),
    count=st.integers(0, 200),
    segment_count=st.sampled_from([1, 3, 500]),
)
def test_dims(dims: list[int], data: st.DataObject, count: int, segment_count: int) -> None:
    exchanges = data.draw(
        st.lists(st.sampled_from(["ring", "direct"]), min_size=len(dims), max_size=len(dims))
    )
    verify(hierarchical(Topology.flat(math.prod(dims)), count, segment_count, dims=dims, exchanges=exchanges))


@quick
@given(
    world_size=st.integers(1, 20),
    colors=st.integers(1, 9),
    arity=st.integers(1, 9),
    count=st.integers(0, 60),
    color_count=st.integers(1, 60),
)
def test_colors(world_size: int, colors: int, arity: int, count: int, color_count: int) -> None:
    plan = multicolor(
        Topology.flat(world_size), count, 5, colors=colors, arity=arity, color_count=color_count
    )
    assert plan.lanes <= colors
    assert plan.lanes == 1 or plan.lanes * color_count <= count
    verify(plan)


@pytest.mark.parametrize(("world_size", "lanes"), [(1, 1), (2, 2), (3, 3), (4, 4), (6, 3), (8, 4), (16, 4)])
def test_colors_that_fit(world_size: int, lanes: int) -> None:
    assert multicolor(Topology.flat(world_size), 100, 10, color_count=10).lanes == lanes
    assert multicolor(Topology.flat(world_size), 100, 10, color_count=101).lanes == 1


@quick
@given(topology=hosts(most=30), rings=st.integers(1, 9), count=st.integers(0, 60))
def test_rings(topology: Topology, rings: int, count: int) -> None:
    plan = multiring(topology, count, 5, rings=rings)
    units = len(topology.hosts) if len(topology.hosts) > 1 else topology.world_size
    assert plan.lanes == min(rings, sum(math.gcd(stride, units) == 1 for stride in range(1, units + 1)))
    verify(plan)


@pytest.mark.parametrize("doubling_count", [0, 96, 97])
@pytest.mark.parametrize("world_size", range(1, 18))
def test_halving_and_doubling(world_size: int, doubling_count: int) -> None:
    verify(PLANNERS["halving_doubling"](Topology.flat(world_size), 97, 40, doubling_count=doubling_count))


@pytest.mark.parametrize("algorithm", ["ring", "multiring", "torus2d", "hierarchical", "halving_doubling"])
def test_least_possible_bytes(algorithm: str) -> None:
    plan = PLANNERS[algorithm](Topology.flat(12), 12 * 4 * 5000, 1000)
    assert {plan.sent_elements(rank) for rank in range(12)} == {2 * 11 * 4 * 5000}


def rounds(algorithm: str, world_size: int, **options: object) -> int:
    return PLANNERS[algorithm](Topology.flat(world_size), 9000, 1000, **options).num_rounds


def test_rounds_by_hand() -> None:
    assert rounds("ring", 8) == rounds("multiring", 8) == 14
    assert rounds("torus2d", 12) == 2 * 3 + 2 * 2
    assert rounds("torus2d", 7) == rounds("ring", 7)
    assert rounds("multicolor", 16) == 4
    assert rounds("halving_doubling", 16) == 8
    assert rounds("halving_doubling", 12) == 6
    assert rounds("halving_doubling", 16, doubling_count=9000) == 4
    assert rounds("hierarchical", 24, dims=(2, 3, 4)) == 2 + 4 + 6


def test_a_host_with_several_ranks_sends_the_data_once() -> None:
    plan = hierarchical(Topology.of_sizes((4, 4, 4)), 12_000, 100, windows=True)
    assert [sum(map(plan.sent_elements, host)) for host in plan.topology.hosts] == [2 * 2 * 4000] * 3


def test_windows_need_no_phase_between_host_and_network() -> None:
    plan = hierarchical(Topology.of_sizes((2, 2)), 1000, 100, windows=True)
    assert [row[0] for row in plan.ops_of(0).tolist() if row[1] == 1][:2] == [Kind.LOCAL_REDUCE, Kind.SEND]
    assert plan.ops_of(0)[:, 1].max() == 2


def _plays_alike(plan: Plan, again: Plan) -> bool:
    return all(np.array_equal(plan.ops_of(rank), again.ops_of(rank)) for rank in range(plan.world_size))


@pytest.mark.parametrize("algorithm", MESSAGES)
def test_plans_are_pure_functions(algorithm: str) -> None:
    topology = Topology.of_sizes((2, 3))
    assert _plays_alike(PLANNERS[algorithm](topology, 99, 4), PLANNERS[algorithm](topology, 99, 4))


def test_huge_counts_keep_tags_small() -> None:
    assert check_sizes(1 << 33, 1) == 1 << 15
    assert check_sizes(100, 7) == 7


@given(
    count=st.integers(0, 500),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    limit=st.integers(1, 50),
)
def test_cut_covers_the_range_evenly(count: int, sizes: list[int], limit: int) -> None:
    edges = split(10, count, *sizes)
    assert (edges[0], edges[-1], len(edges)) == (10, 10 + count, math.prod(sizes) + 1)
    assert np.ptp(np.diff(edges)) <= 1
    pieces = cut(edges, limit)
    assert pieces.count.sum() == count
    assert pieces.count.max(initial=0) <= limit
    assert np.array_equal(
        pieces.offset + pieces.count, np.append(pieces.offset[1:], 10 + count)[: len(pieces.offset)]
    )


def test_merge_sorts_by_time_and_numbers_messages() -> None:
    table = merge(
        [
            rows(Kind.SEND, time=[3, 1, 2], peer=[1, 1, 2], offset=[0, 1, 2], count=1),
            rows(Kind.RECV, time=2, peer=1, offset=3, count=[1, 0]),
        ]
    )
    assert table[:, [KIND, 3, 4, OFFSET, COUNT]].tolist() == [
        [0, 0, 1, 1, 1],
        [0, 0, 2, 2, 1],
        [1, 0, 1, 3, 1],
        [0, 1, 1, 0, 1],
    ]


@pytest.mark.parametrize(
    ("planner", "options", "words"),
    [
        (hierarchical, {"dims": (2, 3)}, "2 x 3 make 6 places, but there are 8 ranks"),
        (torus2d, {"dims": (8, 0)}, "8 x 0 make 0 places"),
        (hierarchical, {"exchanges": ("star", "ring")}, "must name one of ring, direct for each of 2 dims"),
        (hierarchical, {"windows": True, "across": "star"}, "across = 'star' is no planner"),
        (multicolor, {"colors": 0}, "of 1 or more, not colors=0"),
        (multicolor, {"color_count": 0}, "of 1 or more, .* color_count=0"),
        (multiring, {"rings": 0}, "rings >= 1"),
        (PLANNERS["shared_memory"], {}, "one host, and there are 8"),
    ],
)
def test_mistakes(planner: object, options: dict[str, object], words: str) -> None:
    assert callable(planner)
    with pytest.raises(CommError, match=words):
        planner(Topology.flat(8), 100, 10, **options)


@pytest.mark.parametrize(("count", "segment_count"), [(-1, 5), (5, 0)])
def test_wrong_sizes(count: int, segment_count: int) -> None:
    with pytest.raises(CommError, match="count >= 0"):
        PLANNERS["ring"](Topology.flat(2), count, segment_count)


@pytest.mark.parametrize("hosts", [((0, 2),), ((0,), (0,)), ((0,), ())])
def test_wrong_topology(hosts: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(CommError, match="each once"):
        Topology(hosts)


@pytest.mark.parametrize(("count", "num_phases"), [(1024, 1), (1023, 3)])
def test_segments_pass_all_axes_at_once_from_a_quarter_of_their_length_on(
    count: int, num_phases: int
) -> None:
    """16 ranks and 4 lanes: parts of 16 elements are a quarter of 64."""
    plan = torus2d(Topology.flat(16), count, 64)
    assert plan.ops_of(0)[:, PHASE].max() + 1 == num_phases
    verify(plan)
