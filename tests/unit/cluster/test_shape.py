import pytest

from ddltrain.cluster.shape import GOODPUT_SHARE, Shape, format_rate, parse_delay, parse_rate
from ddltrain.errors import ClusterError


@pytest.mark.parametrize(
    ("text", "rate_bits_s"), [("500mbit", 5e8), ("1.5gbit", 1.5e9), ("2000kbit", 2e6), (" 10GBit ", 1e10)]
)
def test_rates(text: str, rate_bits_s: float) -> None:
    assert parse_rate(text) == rate_bits_s


@pytest.mark.parametrize("text", ["500", "fast", "-1mbit", "1tbit", "900kbit", "mbit", ""])
def test_wrong_rates_name_themselves_and_the_way_out(text: str) -> None:
    with pytest.raises(ClusterError, match=r"500mbit|1mbit") as caught:
        parse_rate(text)
    assert text in str(caught.value)


def test_delays() -> None:
    assert [parse_delay(text) for text in ("0.2ms", "30us", "1s", "0ms")] == pytest.approx([2e-4, 3e-5, 1, 0])
    for text in ("0.2", "2s", "1min"):
        with pytest.raises(ClusterError, match="delay"):
            parse_delay(text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "A"},
        {"name": "a/b"},
        {"name": ""},
        {"name": "a" * 17},
        {"num_hosts": 0},
        {"num_hosts": 65},
        {"num_links": 3},
        {"ranks_per_host": 0},
        {"packet_bytes": 1499},
        {"packet_bytes": 64001},
        {"congestion": ""},
        {"congestion": "cubic mtu 1000"},
        {"num_racks": 2},
        {"uplink_bits_s": 1e9},
        {"num_racks": 5, "uplink_bits_s": 1e9},
    ],
)
def test_shapes_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    good: dict[str, object] = {"name": "a", "num_hosts": 4, "rate_bits_s": 1e8}
    Shape(**good)  # type: ignore[arg-type]
    with pytest.raises(ClusterError):
        Shape(**(good | wrong))  # type: ignore[arg-type]


def test_racks_hold_neighbours_in_equal_numbers() -> None:
    shape = Shape("a", 5, 1e8, num_racks=2, uplink_bits_s=5e7, delay_s=1e-3)
    assert [shape.rack(host) for host in shape.hosts] == [0, 0, 0, 1, 1]
    assert shape.goodput_bytes_s(1, 2) == pytest.approx(1e8 / 8 * GOODPUT_SHARE)
    assert shape.goodput_bytes_s(3, 4) == pytest.approx(5e7 / 8 * GOODPUT_SHARE)
    assert [shape.uplink_goodput_bytes_s(rack) for rack in (0, 1)] == pytest.approx(
        [5e7 / 8 * GOODPUT_SHARE] * 2
    )
    wide = Shape("a", 5, 1e8, num_racks=2, uplink_bits_s=9e8)
    assert wide.uplink_goodput_bytes_s(0) == pytest.approx(2e8 / 8 * GOODPUT_SHARE)  # what two hosts take
    assert (shape.round_trip_s(1, 2), shape.round_trip_s(1, 5)) == pytest.approx((2e-3, 4e-3))


def test_names_of_clusters_side_by_side_differ() -> None:
    one, other = Shape("a", 3, 1e8), Shape("b", 3, 1e8)
    assert one.namespaces == ["ddl-a-h1", "ddl-a-h2", "ddl-a-h3", "ddl-a-switch"]
    assert set(one.namespaces).isdisjoint(other.namespaces)
    assert one.hostname(2) == "a-h2"
    assert one.address(3, link=1) == "10.77.1.3"


def test_it_describes_itself() -> None:
    shape = Shape("a", 4, 5e8, delay_s=2e-4, num_racks=2, uplink_bits_s=1e9, num_links=2, ranks_per_host=1)
    assert shape.describe() == (
        "4 hosts x 1 rank, 2 links of 500mbit, 0.2 ms one way, 2 racks with 1gbit uplinks"
    )
    assert format_rate(2.5e9) == "2.5gbit"
    assert Shape("a", 2, 5e8, packet_bytes=64000).describe().endswith("500mbit, packets of 64000 bytes")
    assert Shape("a", 2, 5e8, congestion="bbr").describe().endswith("500mbit, TCP with bbr")
