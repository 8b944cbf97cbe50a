import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ddltrain.errors import DataError
from ddltrain.input.loader import EVAL_BATCH_IMAGES, eval_plan, train_plan
from ddltrain.input.order import StepPlan, epoch_order


def visited(
    num_records: int, world_size: int, batch_per_rank: int, last_batch: str, first_step: int = 0
) -> list[np.ndarray]:
    """Records of an epoch by step, over all ranks in order."""
    plan = StepPlan(num_records, world_size, batch_per_rank, last_batch)
    ranks = [
        list(train_plan(plan, rank, seed=5, epoch=2, first_step=first_step)) for rank in range(world_size)
    ]
    steps = [np.concatenate([parts[step][0] for parts in ranks]) for step in range(len(ranks[0]))]
    for step, records in enumerate(steps):
        assert {parts[step][1] for parts in ranks} == {len(records)}
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
    for step in range(plan.num_steps):
        shares = [stop - start for start, stop in (plan.rank_range(step, rank) for rank in range(world_size))]
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


def test_going_on_in_mid_epoch_visits_the_rest() -> None:
    whole, rest = visited(1003, 3, 20, "keep"), visited(1003, 3, 20, "keep", first_step=7)
    assert all(np.array_equal(one, other) for one, other in zip(whole[7:], rest, strict=True))


def test_order_depends_on_seed_and_epoch_alone() -> None:
    assert np.array_equal(epoch_order(1003, 1, 4), epoch_order(1003, 1, 4))
    assert not np.array_equal(epoch_order(1003, 1, 4), epoch_order(1003, 1, 5))
    assert not np.array_equal(epoch_order(1003, 1, 4), epoch_order(1003, 2, 4))


def test_a_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(DataError, match=r"global batch of 128 \(2 ranks x 64\) is larger than the 127"):
        StepPlan(127, 2, 64, "keep")


@given(st.integers(1, 1000), st.integers(1, 9))
def test_evaluation_takes_each_image_once_in_batches_that_do_not_depend_on_ranks(
    records: int, world_size: int
) -> None:
    batches = [
        tuple(batch) for rank in range(world_size) for batch, _ in eval_plan(records, rank, world_size)
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
    for step in range(few.num_steps):
        parts = [part for rank in range(world_size) for part in few.part_ranges(step, rank)]
        assert parts == [many.rank_range(step, rank) for rank in range(world_size * accumulate)]
        for rank in range(world_size):
            first, behind = few.rank_range(step, rank)
            assert sum(few.part_sizes(step, rank)) == behind - first
