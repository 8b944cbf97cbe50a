from pathlib import Path

import pytest

from ddltrain.errors import LaunchError
from ddltrain.launch.hosts import (
    Host,
    arrange,
    expand_names,
    parse_hosts,
    parse_topology,
    read_hostfile,
    slurm_hosts,
)


def test_hosts_of_the_command_line() -> None:
    assert parse_hosts("a:4, node-2.local:1,c") == [Host("a", 4), Host("node-2.local", 1), Host("c", 1)]
    assert parse_hosts("10.0.0.7:2") == [Host("10.0.0.7", 2)]


@pytest.mark.parametrize("text", ["a:0", "a:x", "", "a,,b", "a b", "-oProxyCommand=x", "a:1,a:2", "a;reboot"])
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(LaunchError):
        parse_hosts(text)


def test_a_hostfile(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# two racks\na slots=4 group=rack1\nb:2 group=rack2  # near\n\nc\n")
    assert read_hostfile(file) == [Host("a", 4, "rack1"), Host("b", 2, "rack2"), Host("c", 1)]
    file.write_text("a slots=4\nb slts=4\n")
    with pytest.raises(LaunchError, match="line 2: 'slts=4'"):
        read_hostfile(file)
    with pytest.raises(LaunchError, match="cannot read the hostfile"):
        read_hostfile(tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n[1-3,07],x5", ["n1", "n2", "n3", "n07", "x5"]),
        ("gpu[008-011]", ["gpu008", "gpu009", "gpu010", "gpu011"]),
        ("r[1-2]n[1-2]-ib", ["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]),
    ],
)
def test_slurms_short_form(text: str, names: list[str]) -> None:
    assert expand_names(text) == names


def test_slurms_allocation() -> None:
    told = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_TASKS_PER_NODE": "4(x2),3"}
    assert slurm_hosts(told) == [Host("n1", 4), Host("n2", 4), Host("n3", 3)]
    assert slurm_hosts({}) == []
    with pytest.raises(LaunchError, match="does not fit 3 hosts"):
        slurm_hosts(told | {"SLURM_TASKS_PER_NODE": "4(x2)"})
    with pytest.raises(LaunchError, match="not understood"):
        slurm_hosts(told | {"SLURM_TASKS_PER_NODE": "many"})


def test_hosts_of_a_group_follow_each_other() -> None:
    hosts = [Host("a", 2, "x"), Host("b", 2, "y"), Host("c", 2, "x"), Host("d", 2, "y")]
    assert [host.name for host in arrange(hosts, None)] == ["a", "c", "b", "d"]
    assert [host.name for host in arrange(hosts, (2, 2, 2))] == ["a", "c", "b", "d"]


def test_a_topology_must_fit() -> None:
    hosts = [Host(name, 4) for name in "abcd"]
    assert [host.group for host in arrange(hosts, (4, 2, 2))] == ["group 0", "group 0", "group 1", "group 1"]
    with pytest.raises(LaunchError, match="2x2x2 is 4 hosts of 2 ranks, 8 in all; the hosts are a:4"):
        arrange(hosts, (2, 2, 2))
    with pytest.raises(LaunchError, match="group x has 3 hosts instead of 2"):
        arrange([Host(name, 4, "x" if name < "d" else "y") for name in "abcd"], (4, 2, 2))
    for text in ("4x2", "4x2x0", "axbxc"):
        with pytest.raises(LaunchError, match="such as 4x2x1"):
            parse_topology(text)
    assert parse_topology("4x2x1") == (4, 2, 1)
