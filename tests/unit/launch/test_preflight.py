"""What differs between hosts, and which of them are lost; no host is asked."""

from dataclasses import replace

import pytest

from ddltrain.doctor.facts import Facts, facts_from_dict, facts_to_dict, gather_facts
from ddltrain.doctor.interfaces import Interface, shared_network
from ddltrain.launch.hosts import Host
from ddltrain.launch.place import Place
from ddltrain.launch.preflight import (
    Look,
    choose_network,
    compare,
    cores_of_a_rank,
    lost_hosts,
    table,
)

HOSTS = [Host(name, 4) for name in "abcd"]
ETH = Interface("eth0", "10.0.0.1", "10.0.0.0/24", 1000)


@pytest.fixture(scope="module")
def facts() -> Facts:
    usual = {"allowed_cores": 8, "cgroup_cores": 0.0, "available_bytes": 8 << 30, "shm_free_bytes": 1 << 30}
    return replace(gather_facts(), mpi="Open MPI v5", extension="Open MPI v5", interfaces=(ETH,), **usual)  # type: ignore[arg-type]


def looks_of(usual_facts: Facts, **odd: object) -> list[Look]:
    """Four hosts that are alike, but for c."""
    usual = Look(facts=usual_facts, data="abc")
    return [usual, usual, replace(usual, **odd), usual]  # type: ignore[arg-type]


def problems(looks: list[Look]) -> dict[str, str]:
    return {row.what: row.problem for row in compare(HOSTS, looks) if row.problem}


def test_facts_travel(facts: Facts) -> None:
    assert facts_from_dict(facts_to_dict(facts) | {"gpus": [], "interfaces": [vars(ETH)]}) == facts


def test_hosts_that_are_alike_fit(facts: Facts) -> None:
    assert problems(looks_of(facts)) == {}
    lines = table(HOSTS, compare(HOSTS, looks_of(facts)))
    assert all(" on " not in line for line in lines)


@pytest.mark.parametrize(
    ("entry", "value", "what"),
    [
        ("ddltrain", "0.0.1", "ddltrain"),
        ("source", "f00", "ddltrain"),
        ("python", "3.9.1", "Python"),
        ("torch", "1.0", "torch"),
        ("torch", "", "torch"),
        ("mpi", "Open MPI v4", "MPI"),
        ("mpi", "", "MPI"),
        ("extension", "", "extension"),
    ],
)
def test_what_differs_is_named_with_its_host(facts: Facts, entry: str, value: str, what: str) -> None:
    looks = looks_of(facts, facts=replace(facts, **{entry: value}))  # type: ignore[arg-type]
    assert list(problems(looks)) == [what]
    line = next(line for line in table(HOSTS, compare(HOSTS, looks)) if "PROBLEM" in line)
    assert " on c" in line


@pytest.mark.parametrize(
    ("odd", "what"),
    [
        ({"error": "no route", "facts": None}, "reached"),
        ({"unreachable": ("d",)}, "reached"),
        ({"data": "other"}, "data"),
        ({"data": "", "data_error": "no such folder"}, "data"),
        ({"clock_offset_s": 7.0}, "clock"),
        ({"clock_offset_s": -7.0}, "clock"),
    ],
)
def test_what_else_may_be_wrong(facts: Facts, odd: dict[str, object], what: str) -> None:
    assert list(problems(looks_of(facts, **odd))) == [what]


def test_few_cores_and_little_memory_are_only_told(facts: Facts) -> None:
    looks = looks_of(
        facts, facts=replace(facts, allowed_cores=2, available_bytes=1 << 20, shm_free_bytes=1 << 20)
    )
    assert problems(looks) == {}
    assert [row.what for row in compare(HOSTS, looks) if row.warning] == ["cores", "memory", "/dev/shm"]
    assert cores_of_a_rank(HOSTS, looks) == 0
    assert cores_of_a_rank(HOSTS, looks_of(facts)) == 2


def test_lost_hosts(facts: Facts) -> None:
    seen = Look(facts=facts)
    assert lost_hosts(HOSTS, [seen] * 4) == []
    assert lost_hosts(HOSTS, [seen, Look(error="gone"), seen, seen]) == [HOSTS[1]]
    cut = [replace(seen, unreachable=("c",))] * 4
    cut[2] = replace(seen, unreachable=("a", "b", "d"))
    assert lost_hosts(HOSTS, cut) == [HOSTS[2]]
    # Others need not reach a host that is gone anyway.
    assert lost_hosts(HOSTS, [replace(seen, unreachable=("b",)), Look(error="gone"), seen, seen]) == [
        HOSTS[1]
    ]


def test_the_network_that_all_share(facts: Facts) -> None:
    docker = Interface("docker0", "172.17.0.1", "172.17.0.0/16", 100000)
    fast = Interface("ib0", "10.1.0.1", "10.1.0.0/16", 100000)
    loopback = Interface("lo", "127.0.0.1", "127.0.0.0/8", 0)
    assert shared_network([[loopback, docker, ETH], [loopback, docker, ETH]]) == "10.0.0.0/24"
    assert shared_network([[ETH, fast], [fast, ETH]]) == "10.1.0.0/16"
    assert shared_network([[ETH, fast], [ETH]]) == "10.0.0.0/24"
    assert shared_network([[loopback, docker], [loopback, docker]]) == ""
    place = Place(tuple(HOSTS))
    assert choose_network(place, looks_of(facts), by_name=False) == "10.0.0.0/24"
    assert choose_network(place, looks_of(facts), by_name=True) == "eth0"
    other = replace(facts, interfaces=(replace(ETH, name="ens3"),))
    assert choose_network(place, looks_of(facts, facts=other), by_name=True) == ""
