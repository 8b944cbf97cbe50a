import pytest

from ddltrain.cluster.network import check_may_build, rack_ports
from ddltrain.cluster.shape import Shape
from ddltrain.errors import ClusterError


def test_a_switch_for_each_rack_and_link() -> None:
    plain = Shape("a", 3, 1e8, num_links=2)
    assert rack_ports(plain) == [["h1l0", "h2l0", "h3l0"], ["h1l1", "h2l1", "h3l1"]]
    racks = Shape("a", 4, 1e8, num_racks=2, uplink_bits_s=1e8)
    assert rack_ports(racks) == [["h1l0", "h2l0", "up0l0"], ["h3l0", "h4l0", "up1l0"]]


def test_who_is_not_root_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="root"):
        check_may_build()


def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda program: None if program in ("ip", "tc") else "/bin/it")
    with pytest.raises(ClusterError, match=r"no ip and no tc on PATH.*iproute2"):
        check_may_build()
