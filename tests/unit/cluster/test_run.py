import json
from pathlib import Path

import pytest

from ddltrain.cluster.run import LINKS_VARIABLE, environment, link_facts, mpiexec_words
from ddltrain.cluster.shape import Shape
from ddltrain.cluster.state import State

KNOWN = State(Shape("a", 3, 5e8, num_links=2, ranks_per_host=2), True, False, 60e6, 1e-4)


def test_mpiexec_gets_all_hosts_and_all_links() -> None:
    words = mpiexec_words(KNOWN, "mpiexec", Path("/state"), ["--mca", "coll", "^han"])
    assert words[:3] == ["/state/enter", "1", "mpiexec"]
    assert words[words.index("--host") + 1] == "10.77.0.1:2,10.77.0.2:2,10.77.0.3:2"
    assert words[words.index("-n") + 1] == "6"
    assert words[words.index("--map-by") + 1] == "ppr:2:node:oversubscribe"
    assert words[words.index("btl_tcp_if_include") + 1] == "eth0,eth1"
    assert words[-3:] == ["--mca", "coll", "^han"]


def test_the_environment_says_what_links_carry_and_drops_a_launchers_own_words() -> None:
    fresh = environment(KNOWN, {"HOME": "/root", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"})
    assert "PRTE_MCA_rmaps_default_mapping_policy" not in fresh
    assert fresh["HOME"] == "/root"
    assert fresh["GLOO_SOCKET_IFNAME"] == "eth0,eth1"
    facts = json.loads(fresh[LINKS_VARIABLE])
    assert facts == {"place": KNOWN.shape.describe(), "goodput_bytes_s": 120e6, "racks": 1}


def test_uplinks_scale_as_measured() -> None:
    racks = State(Shape("a", 4, 1e8, num_racks=2, uplink_bits_s=5e7), True, False, 12e6, 1e-4)
    assert link_facts(racks)["uplink_bytes_s"] == pytest.approx(6e6)
