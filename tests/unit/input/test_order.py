from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ddltrain.errors import DataError
from ddltrain.input.order import EVAL_BATCH_IMAGES, StepPlan, Visits, epoch_order, eval_visits


def batches_of(visits: Visits, order: np.ndarray) -> list[np.ndarray]:
    records, edges = order[visits.positions()], visits.edges()
    assert len(records) == edges[-1]
    return [records[edges[batch] : edges[batch + 1]] for batch in range(len(visits))]


def visited(num_records: int, world_size: int, batch_per_rank: int, last_batch: str) -> list[np.ndarray]:
    """Records of an epoch by step, over all ranks in order."""
    plan = StepPlan(num_records, world_size, batch_per_rank, last_batch)
    order = epoch_order(num_records, seed=5, epoch=2)
    ranks = [plan.visits(rank) for rank in range(world_size)]
    parts = [batches_of(visits, order) for visits in ranks]
    steps = [np.concatenate([own[step] for own in parts]) for step in range(plan.num_steps)]
    for visits in ranks:
        assert visits.step_images.tolist() == [len(records) for records in steps]
    edges = plan.step_edges()
    for step, records in enumerate(steps):
        assert np.array_equal(records, order[edges[step] : edges[step + 1]])
    return steps


@given(st.integers(1, 300), st.integers(1, 9), st.integers(1, 40))
def test_an_epoch_visits_every_record_once_in_even_steps(records: int, world_size: int, batch: int) -> None:
    assume(world_size * batch <= records)
    steps = visited(records, world_size, batch, "keep")
    assert sorted(np.concatenate(steps)) == list(range(records))
    sizes = [len(step) for step in steps]
    assert len(sizes) == -(-records // (world_size * batch))
    assert world_size * batch >= max(sizes) >= min(sizes) >= max(sizes) - 1
    plan = StepPlan(records, world_size, batch, "keep")
    for shares in np.diff(plan.rank_edges(), axis=1):
        assert batch >= max(shares) >= min(shares) >= max(shares) - 1


@given(st.integers(1, 300), st.integers(1, 9), st.integers(1, 40))
def test_dropping_leaves_out_less_than_a_batch(records: int, world_size: int, batch: int) -> None:
    assume(world_size * batch <= records)
    steps = visited(records, world_size, batch, "drop")
    assert {len(step) for step in steps} == {world_size * batch}
    seen = np.concatenate(steps)
    assert len(set(seen)) == len(seen) > records - world_size * batch


@pytest.mark.parametrize("world_size", [1, 2, 3, 6])
def test_ranks_share_the_batches_that_one_rank_would_have(world_size: int) -> None:
    alone = visited(1003, 1, 60, "keep")
    together = visited(1003, world_size, 60 // world_size, "keep")
    assert all(np.array_equal(one, many) for one, many in zip(alone, together, strict=True))


def test_edges_of_steps_and_ranks_agree_with_the_visits() -> None:
    plan = StepPlan(1003, 3, 20, "keep")
    for rank in range(3):
        visits = plan.visits(rank)
        assert np.array_equal(visits.first, plan.rank_edges()[:, rank])
        assert np.array_equal(visits.stop, plan.rank_edges()[:, rank + 1])


def test_order_depends_on_seed_and_epoch_alone() -> None:
    assert np.array_equal(epoch_order(1003, 1, 4), epoch_order(1003, 1, 4))
    assert not np.array_equal(epoch_order(1003, 1, 4), epoch_order(1003, 1, 5))
    assert not np.array_equal(epoch_order(1003, 1, 4), epoch_order(1003, 2, 4))


def test_orders_are_uniform_over_seeds() -> None:
    """Chi-square over many seeds: each record comes to each position equally often."""
    num_records, num_seeds = 24, 4000
    counts = np.zeros((num_records, num_records))
    for seed in range(num_seeds):
        counts[np.arange(num_records), epoch_order(num_records, seed, 3)] += 1
    expected = num_seeds / num_records
    chi = ((counts - expected) ** 2 / expected).sum()
    degrees = (num_records - 1) ** 2
    assert abs(chi - degrees) < 5 * np.sqrt(2 * degrees)


def test_the_order_of_one_epoch_tells_nothing_of_the_next() -> None:
    orders = [np.argsort(epoch_order(10_000, 1, epoch)) for epoch in range(6)]
    for one, other in pairwise(orders):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.05


@given(st.integers(1, 300), st.integers(1, 70), st.integers(1, 9), st.integers(1, 9), st.integers(1, 3))
def test_any_number_of_ranks_shares_a_given_global_batch(
    records: int, given_batch: int, world_size: int, batch: int, accumulate: int
) -> None:
    assume(given_batch <= records)
    alone = StepPlan(records, 1, given_batch, "keep")
    shared = StepPlan(records, world_size, batch, "keep", accumulate, given_batch)
    assert shared.global_batch == given_batch
    np.testing.assert_array_equal(shared.step_edges(), alone.step_edges())
    visits = [shared.visits(rank) for rank in range(world_size)]
    seen = np.concatenate([own.positions() for own in visits])
    assert sorted(seen) == list(range(records))
    for rank, own in enumerate(visits):
        sizes = own.stop - own.first
        assert max(sizes) <= shared.largest_share
        for step in range(shared.num_steps):
            parts = shared.part_sizes(step, rank)
            assert sum(parts) == sizes[step]
            assert max(parts) <= batch


def test_four_hosts_and_three_take_the_same_steps() -> None:
    four, three = StepPlan(1442, 4, 16, "keep"), StepPlan(1442, 3, 16, "keep", given=64)
    np.testing.assert_array_equal(four.step_edges(), three.step_edges())
    assert [three.part_sizes(0, rank) for rank in range(3)] == [[11, 11], [11, 10], [10, 10]]


def test_a_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(DataError, match=r"global batch of 128 \(2 ranks x 64\) is larger than the 127"):
        StepPlan(127, 2, 64, "keep")
    with pytest.raises(
        DataError, match=r"global batch of 128 is larger than the 127 .* lower train.global_batch"
    ):
        StepPlan(127, 3, 64, "keep", given=128)


@given(st.integers(1, 1000), st.integers(1, 9))
def test_evaluation_takes_each_image_once_in_batches_that_do_not_depend_on_ranks(
    records: int, world_size: int
) -> None:
    order = np.arange(records)
    batches = [
        tuple(batch)
        for rank in range(world_size)
        for batch in batches_of(eval_visits(records, rank, world_size), order)
    ]
    expected = [
        tuple(range(start, min(start + EVAL_BATCH_IMAGES, records)))
        for start in range(0, records, EVAL_BATCH_IMAGES)
    ]
    assert sorted(batches) == expected


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))
def test_accumulating_ranks_take_the_parts_of_as_many_ranks(
    num_records: int, world_size: int, accumulate: int, batch: int
) -> None:
    num_records += world_size * accumulate * batch
    few = StepPlan(num_records, world_size, batch, "keep", accumulate)
    many = StepPlan(num_records, world_size * accumulate, batch, "keep")
    assert (few.global_batch, few.num_steps) == (many.global_batch, many.num_steps)
    np.testing.assert_array_equal(few.rank_edges(), many.rank_edges()[:, ::accumulate])
    sizes = np.diff(many.rank_edges())
    for step in range(few.num_steps):
        parts = [size for rank in range(world_size) for size in few.part_sizes(step, rank)]
        assert parts == sizes[step].tolist()
    for rank in range(world_size):
        visits = few.visits(rank)
        np.testing.assert_array_equal(visits.first, few.rank_edges()[:, rank])
        np.testing.assert_array_equal(visits.stop, few.rank_edges()[:, rank + 1])
