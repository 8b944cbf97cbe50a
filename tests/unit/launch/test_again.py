import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddltrain.errors import LaunchError
from ddltrain.launch.again import Batch, batch_for, first_ranks
from ddltrain.launch.hosts import Host


@given(
    st.integers(1, 16),
    st.integers(1, 12),
    st.integers(1, 4),
    st.integers(1, 16),
    st.integers(0, 16),
)
def test_the_global_batch_stays_or_it_is_refused(
    ranks: int, batch: int, accumulate: int, left: int, at_least: int
) -> None:
    before = Batch(ranks, batch, accumulate)
    try:
        after = batch_for(before, left, at_least)
    except LaunchError:
        wanted = range(max(1, at_least), min(left, ranks) + 1)
        assert all(before.global_batch % number for number in wanted)
        return
    assert after.global_batch == before.global_batch
    assert max(1, at_least) <= after.num_ranks <= min(left, ranks)
    assert not any(
        before.global_batch % more == 0 for more in range(after.num_ranks + 1, min(left, ranks) + 1)
    )
    assert after.batch_per_rank <= batch


def test_examples() -> None:
    assert batch_for(Batch(4, 12), 3, 2) == Batch(3, 8, 2)
    assert batch_for(Batch(4, 16), 3, 2) == Batch(2, 16, 2)  # 3 does not divide 64
    with pytest.raises(LaunchError, match=r"3 ranks are left, at least 3 .* global batch of 64"):
        batch_for(Batch(4, 16), 3, 3)


def test_ranks_leave_the_last_hosts_first() -> None:
    hosts = [Host("a", 4), Host("b", 4), Host("c", 4)]
    assert first_ranks(hosts, 6) == [Host("a", 4), Host("b", 2)]
    assert first_ranks(hosts, 12) == hosts
