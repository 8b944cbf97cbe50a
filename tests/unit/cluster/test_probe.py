import pytest

from ddltrain.cluster.probe import Measured, complaint


@pytest.mark.parametrize(
    ("goodput_bytes_s", "round_trip_s", "wrong"),
    [
        (60e6, 0.5e-3, ""),
        (55e6, 0.5e-3, ""),
        (53e6, 0.5e-3, "12% less"),
        (600e6, 0.5e-3, "900% more"),
        (60e6, 0.39e-3, "390 us"),
        (60e6, 1.6e-3, "1600 us"),
    ],
)
def test_links_that_are_off_are_told_from_good_ones(
    goodput_bytes_s: float, round_trip_s: float, wrong: str
) -> None:
    found = complaint(60e6, 0.4e-3, Measured(goodput_bytes_s, round_trip_s))
    assert wrong in found
    assert bool(found) == bool(wrong)
