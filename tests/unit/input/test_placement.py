"""Placements and moves, carried out here by copying between the regions of all ranks."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ddltrain.input.order import StepPlan, epoch_order
from ddltrain.input.placement import (
    Layout,
    Move,
    Placement,
    lay_out_disk,
    place_epoch,
    place_on_disk,
    plan_move,
)

SEED = 3


def groups_of(world_size: int, num_groups: int) -> list[tuple[int, ...]]:
    return [tuple(part.tolist()) for part in np.array_split(np.arange(world_size), num_groups)]


def image(record: int, size: int) -> np.ndarray:
    return ((np.arange(size) + 7 * record) % 251).astype(np.uint8)


def moved(
    old: Placement, held: list[tuple[Layout, np.ndarray]], new: Placement, sizes: np.ndarray
) -> Iterator[tuple[Move, np.ndarray]]:
    """What each rank of a group has after the move; segment after segment, old bytes wiped as they leave."""
    num = len(held)
    moves = [plan_move(old, layout, new, sizes, own, num) for own, (layout, _) in enumerate(held)]
    blocks = [np.zeros(move.layout.num_bytes, np.uint8) for move in moves]
    for segment in range(old.num_segments):
        for source, move in enumerate(moves):
            for target in range(num):
                first, last = move.leaving.edges[segment, target : target + 2]
                to = moves[target].arriving
                first_there, last_there = to.edges[segment, source : source + 2]
                assert last - first == last_there - first_there
                for here, there in zip(range(first, last), range(first_there, last_there), strict=True):
                    size = move.leaving.sizes[here]
                    assert size == to.sizes[there]
                    start, place = move.leaving.starts[here], to.starts[there]
                    blocks[target][place : place + size] = held[source][1][start : start + size]
        for layout, block in held:
            block[layout.segment_edges[segment] : layout.segment_edges[segment + 1]] = 255
    return zip(moves, blocks, strict=True)


@given(
    st.integers(1, 120),
    st.integers(1, 6),
    st.integers(1, 5),
    st.integers(1, 7),
    st.sampled_from(["keep", "drop"]),
    st.data(),
)
def test_after_any_moves_each_rank_holds_what_it_visits(
    num_records: int, world_size: int, batch: int, num_segments: int, last_batch: str, data: st.DataObject
) -> None:
    assume(world_size * batch <= num_records)
    plan = StepPlan(num_records, world_size, batch, last_batch)
    num_segments = min(num_segments, plan.num_steps)
    sizes = np.random.default_rng(num_records).integers(0, 40, num_records)
    num_groups = data.draw(st.integers(1, world_size))
    for group in groups_of(world_size, num_groups):
        disk = place_on_disk(sizes, group, 3)
        held = []
        for own in range(len(group)):
            layout = lay_out_disk(disk, sizes, own)
            images = [image(record, sizes[record]) for record in layout.records.tolist()]
            held.append((layout, np.concatenate([*images, np.empty(0, np.uint8)])))
        place = disk
        for epoch in (4, 5, 6):
            new = place_epoch(plan, group, num_segments, SEED, epoch)
            order = epoch_order(num_records, SEED, epoch)
            after = list(moved(place, held, new, sizes))
            for rank, (move, block) in zip(group, after, strict=True):
                assert np.array_equal(move.visited, order[plan.visits(rank).positions()])
                for record, start in zip(move.visited, move.visited_starts, strict=True):
                    assert np.array_equal(block[start : start + sizes[record]], image(record, sizes[record]))
            everything = np.concatenate([move.layout.records for move, _ in after])
            assert sorted(everything) == list(range(num_records))
            held, place = [(move.layout, block) for move, block in after], new


@pytest.mark.parametrize("num_groups", [1, 2, 3])
def test_ranks_hold_equal_numbers_and_pass_them_on_evenly(num_groups: int) -> None:
    plan = StepPlan(10_000, 8, 20, "keep")
    for group in groups_of(8, num_groups):
        place = place_epoch(plan, group, 16, SEED, 1)
        counts = np.bincount(place.holder, minlength=len(group))
        assert counts.max() - counts.min() <= plan.num_steps
        for segment in range(16):
            part = np.bincount(place.holder[place.segment == segment], minlength=len(group))
            assert part.max() < 1.2 * 10_000 / 16 / len(group)


def test_a_region_is_filled_from_left_to_right_in_each_segment() -> None:
    """So that few pages come into being before the old ones are given back."""
    plan, group = StepPlan(2000, 4, 10, "keep"), (0, 1, 2, 3)
    sizes = np.random.default_rng(0).integers(1, 100, 2000)
    old, new = (place_epoch(plan, group, 8, SEED, epoch) for epoch in (0, 1))
    disk = place_on_disk(sizes, group, 8)
    held = plan_move(disk, lay_out_disk(disk, sizes, 2), old, sizes, 2, 4).layout
    move = plan_move(old, held, new, sizes, 2, 4)
    stage = np.empty(2000, np.int64)
    stage[old.order] = old.segment
    use = np.empty(2000, np.int64)
    use[new.order] = new.segment
    keys = use[move.layout.records] * 8 + stage[move.layout.records]
    assert (np.diff(keys) >= 0).all()
    left = held.segment_edges
    assert left[0] == 0
    assert left[-1] == held.num_bytes


def test_the_disk_is_read_in_consecutive_shares_of_equal_bytes() -> None:
    sizes = np.random.default_rng(0).integers(0, 200, 5000)
    disk = place_on_disk(sizes, (3, 5, 7), 4)
    assert (np.diff(disk.holder.astype(int) * 4 + disk.segment) >= 0).all()
    shares = [sizes[disk.holder == own].sum() for own in range(3)]
    assert max(shares) - min(shares) <= 400


def test_who_holds_a_record_is_uniform_over_seeds() -> None:
    """Chi-square over many seeds: each record lies with each rank, and in each segment, equally often."""
    plan, group, num_seeds = StepPlan(60, 4, 5, "keep"), (0, 1, 2, 3), 2000
    counts = np.zeros((60, 4, 3))
    for seed in range(num_seeds):
        place = place_epoch(plan, group, 3, seed, 1)
        counts[place.order, place.holder, place.segment] += 1
    expected = num_seeds / 12
    chi = ((counts - expected) ** 2 / expected).sum(axis=(1, 2))  # 11 degrees of freedom each
    assert chi.max() < 45  # 60 records: P(any above) is below 1e-3
    assert 9 < chi.mean() < 13
