import pytest

from ddltrain.bench.sizes import format_size, parse_size, sizes_between
from ddltrain.errors import CommError


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("4096", 4096), ("4K", 4096), ("25m", 25 << 20), ("1GiB", 1 << 30), ("8 B", 8)]
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "K", "-4", "1.5M", "4T", "four"])
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(CommError, match="size"):
        parse_size(text)


def test_steps_end_at_or_below_the_last_size() -> None:
    assert sizes_between(4096, 100 << 20, 4) == [4096 * 4**step for step in range(8)]
    assert sizes_between(8, 8, 2) == [8]
    assert sizes_between(8, 15, 2) == [8]
    for wrong in ((0, 8, 2), (16, 8, 2), (8, 16, 1)):
        with pytest.raises(CommError, match="sizes from"):
            sizes_between(*wrong)


def test_sizes_are_written_in_the_largest_whole_unit() -> None:
    assert [format_size(size) for size in (1, 1000, 4096, 25 << 20, 1 << 30)] == [
        "1 B",
        "1000 B",
        "4 KiB",
        "25 MiB",
        "1 GiB",
    ]
