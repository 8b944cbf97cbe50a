import json
from pathlib import Path

import pytest

from ddltrain.bench.floors import Place, find_place, own_address
from ddltrain.cluster.run import LINKS_VARIABLE
from ddltrain.comm.world import World
from ddltrain.errors import ClusterError


def test_hosts_send_and_receive_their_share() -> None:
    place = Place("4 hosts", 4, 2, link_bytes_s=60e6, memory_bytes_s=40e9)
    assert place.floor_s(60_000_000) == pytest.approx(1.5)
    assert Place("2 hosts", 2, 1, 60e6, 40e9).floor_s(60_000_000) == pytest.approx(1.0)
    assert "60.00 MB/s" in place.describe_floor()


def test_the_ranks_of_one_host_read_all_and_write_all() -> None:
    place = Place("1 host", 1, 4, 0, memory_bytes_s=40e9)
    assert place.floor_s(100_000_000) == pytest.approx(2 * 4 * 0.1 / 40)
    assert "40.0 GB/s" in place.describe_floor()


def test_one_rank_has_nothing_to_do() -> None:
    assert Place("1 host", 1, 1, 0, 40e9).floor_s(1 << 20) == 0


def test_narrow_uplinks_decide() -> None:
    wide = Place("racks", 8, 1, 60e6, 40e9, num_racks=2, uplink_bytes_s=480e6)
    assert wide.floor_s(60_000_000) == pytest.approx(2 * 7 / 8)
    narrow = Place("racks", 8, 1, 60e6, 40e9, num_racks=2, uplink_bytes_s=30e6)
    assert narrow.floor_s(60_000_000) == pytest.approx(2.0)


def test_what_is_stated_wins_over_what_the_cluster_says(alone: World) -> None:
    facts = {LINKS_VARIABLE: json.dumps({"place": "there", "goodput_bytes_s": 5e6, "racks": 1})}
    found = find_place(alone, None, 3, facts)
    assert (found.description, found.num_hosts, found.link_bytes_s) == ("there", 3, 5e6)
    assert found.memory_bytes_s > 0
    stated = find_place(alone, "1514mbit", 3, facts)
    assert stated.link_bytes_s == pytest.approx(181e6)
    assert find_place(alone, None, None, {}).description == "1 host, 1 rank"
    with pytest.raises(ClusterError, match="rate"):
        find_place(alone, "quick", 3, {})


@pytest.mark.skipif(not Path("/sys/class/net/lo").exists(), reason="no loopback of that name")
def test_addresses_of_interfaces() -> None:
    assert own_address("lo,eth9", 4) == "127.0.0.1"
    assert own_address("", 1) == "127.0.0.1"
