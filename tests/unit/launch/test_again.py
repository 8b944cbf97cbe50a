import pytest

from ddltrain.errors import LaunchError
from ddltrain.launch.again import first_ranks, ranks_to_go_on
from ddltrain.launch.hosts import Host


@pytest.mark.parametrize(
    ("left", "at_least", "group", "go_on"), [(3, 2, 1, 3), (3, 0, 1, 3), (7, 4, 2, 6), (1, 1, 1, 1)]
)
def test_all_ranks_that_are_left_go_on_in_whole_groups(
    left: int, at_least: int, group: int, go_on: int
) -> None:
    assert ranks_to_go_on(left, at_least, group) == go_on


@pytest.mark.parametrize(
    ("left", "at_least", "group", "message"),
    [
        (3, 4, 1, r"3 rank\(s\) are left, at least 4 are wanted \(--min-ranks\): mend"),
        (7, 7, 4, r"7 rank\(s\) .* in groups of 4 \(bn.group\): mend"),
        (1, 0, 2, "at least 1 are wanted"),
    ],
)
def test_too_few_are_refused(left: int, at_least: int, group: int, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        ranks_to_go_on(left, at_least, group)


def test_ranks_leave_the_last_hosts_first() -> None:
    hosts = [Host("a", 4), Host("b", 4), Host("c", 4)]
    assert first_ranks(hosts, 6) == [Host("a", 4), Host("b", 2)]
    assert first_ranks(hosts, 12) == hosts
