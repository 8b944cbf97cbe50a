"""Emulated clusters as a user makes, uses and removes them. They take root and a Linux with iproute2."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import REPOSITORY, Command

from ddltrain.cluster import state
from ddltrain.cluster.network import existing_namespaces, processes_in
from ddltrain.cluster.probe import measure
from ddltrain.cluster.shape import Shape

NAME = f"t{os.getpid()}"
WAIT_S = 60


def _why_not() -> str:
    """Why no cluster can be made here; empty if one can."""
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    if not shutil.which("ip") or not shutil.which("tc"):
        return "iproute2 is not installed"
    try:
        for line in (
            f"ip netns add probe-{NAME}",
            f"ip -n probe-{NAME} link add one type veth peer name two",
            f"tc -n probe-{NAME} qdisc add dev one root tbf rate 1mbit burst 20kb limit 1mb",
        ):
            done = subprocess.run(line.split(), capture_output=True, text=True, check=False)
            if done.returncode:
                return f"`{line}` fails: {done.stderr.strip()}"
    finally:
        subprocess.run(["ip", "netns", "del", f"probe-{NAME}"], capture_output=True, check=False)
    return ""


@pytest.fixture(scope="module", autouse=True)
def _possible() -> None:
    if why_not := _why_not():
        pytest.skip(why_not)


@pytest.fixture
def before(command: Command) -> Iterator[set[str]]:
    """All namespaces before the test; afterwards they are the same again."""
    found = existing_namespaces()
    yield found
    for name in (NAME, f"{NAME}b"):
        assert command("cluster", "down", "--name", name).returncode == 0
        assert not state.folder_of(name).exists()
    assert existing_namespaces() == found


def start(*words: str) -> subprocess.Popen[str]:
    action, *rest = words
    return subprocess.Popen(
        [sys.executable, "-m", "ddltrain", "cluster", action, "--name", NAME, *rest],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )


def up(command: Command, *words: str) -> str:
    done = command("cluster", "up", "--name", NAME, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_hosts_have_names_and_limited_links_and_leave_nothing(command: Command, before: set[str]) -> None:
    text = up(command, "--hosts", "3", "--rate", "50mbit", "--ranks-per-host", "2", "--links", "2")
    assert text.count("of what the rate allows") == 6
    shape = Shape(NAME, 3, 5e7, num_links=2)
    assert existing_namespaces() - before == set(shape.namespaces)
    for link in (0, 1):
        found = measure(shape.namespace(2), shape.namespace(1), shape.address(1, link))
        assert 0 < found.goodput_bytes_s < 1.1 * 5e7 / 8
    assert f"{NAME}-h3: 10.77.0.3 10.77.1.3, 0 processes" in command("cluster", "status").stdout

    done = command("cluster", "run", "--name", NAME, "--", "hostname")
    assert sorted(done.stdout.split()) == sorted([f"{NAME}-h1", f"{NAME}-h2", f"{NAME}-h3"] * 2)
    own = "import os; assert not os.listdir('/dev/shm'); print(sorted(os.listdir('/sys/class/net')))"
    done = command("cluster", "run", "--name", NAME, "--", sys.executable, "-c", own)
    assert done.stdout.splitlines() == ["['eth0', 'eth1', 'lo']"] * 6
    assert command("cluster", "run", "--name", NAME, "--", "sh", "-c", "exit 7").returncode == 7

    again = command("cluster", "up", "--name", NAME, "--hosts", "2", "--rate", "50mbit")
    assert again.returncode == 2
    assert "is up already" in again.stderr
    assert command("cluster", "down", "--name", NAME).returncode == 0
    assert existing_namespaces() == before


def test_tcp_has_the_congestion_control_asked_for(command: Command, before: set[str]) -> None:
    host = Shape(NAME, 2, 5e7).namespace(1)
    routes = ["ip", "-n", host, "route", "show", "10.77.0.0/24"]
    for words, congestion in ((), "cubic"), (("--congestion", "reno"), "reno"):
        up(command, "--hosts", "2", "--rate", "50mbit", *words)
        assert (
            f"congctl {congestion}"
            in subprocess.run(routes, capture_output=True, text=True, check=True).stdout
        )
        assert command("cluster", "down", "--name", NAME).returncode == 0
    unknown = command(
        "cluster", "up", "--name", NAME, "--hosts", "2", "--rate", "50mbit", "--congestion", "none-such"
    )
    assert unknown.returncode == 2
    assert "congestion control 'none-such'" in unknown.stderr
    assert existing_namespaces() == before


def test_packets_are_as_large_as_asked_for(command: Command, before: set[str]) -> None:
    text = up(command, "--hosts", "2", "--rate", "50mbit", "--packet", "40000")
    assert "is up: 2 hosts x 1 rank, 1 link of 50mbit, packets of 40000 bytes" in text
    shape = Shape(NAME, 2, 5e7)
    show = ["ip", "-n", shape.namespace(2), "-details", "link", "show", "eth0"]
    assert "gso_max_size 40000" in subprocess.run(show, capture_output=True, text=True, check=True).stdout
    # The limit stays what it is, though larger pieces pass.
    found = measure(shape.namespace(2), shape.namespace(1), shape.address(1))
    assert 0 < found.goodput_bytes_s < 1.1 * 5e7 / 8
    assert command("cluster", "down", "--name", NAME).returncode == 0
    assert existing_namespaces() == before


def test_delays_and_racks(command: Command, before: set[str]) -> None:
    words = ("--hosts", "4", "--rate", "50mbit", "--racks", "2", "--uplink", "20mbit", "--delay", "5ms")
    text = up(command, *words)
    assert text.count("of what the rate allows") == 4
    for line in (
        "rack 0 uplink 0 -> rack 1, 2 host(s) at once",
        "rack 1 uplink 0 -> rack 0, 2 host(s) at once",
    ):
        assert line in text
    assert "inside a rack, host to host: " in text
    assert "between racks, host to host: " in text
    shape = Shape(NAME, 4, 5e7, num_racks=2, uplink_bits_s=2e7, delay_s=5e-3)
    near = measure(shape.namespace(1), shape.namespace(2), shape.address(2), 0.01)
    far = measure(shape.namespace(1), shape.namespace(3), shape.address(3), 0.02)
    assert 0.01 <= near.round_trip_s < 0.02 <= far.round_trip_s
    assert far.goodput_bytes_s < 1.1 * 2e7 / 8
    switch = processes_in([shape.switch_namespace])
    if switch:  # this kernel needs one in user space
        os.kill(switch[0], signal.SIGKILL)
        until(lambda: not processes_in([shape.switch_namespace]))
        done = command("cluster", "run", "--name", NAME, "--", "hostname")
        assert done.returncode == 2
        assert "delay switch has ended" in done.stderr


def test_the_benchmark_takes_the_links_for_its_floor(
    command: Command, before: set[str], tmp_path: Path
) -> None:
    up(command, "--hosts", "2", "--rate", "100mbit")
    bench = (sys.executable, "-m", "ddltrain", "bench-allreduce", "-b", "256K", "-e", "256K", "-n", "5")
    done = command(
        *("cluster", "run", "--name", NAME, "--", *bench, "--algorithms", "mpi,gloo"),
        *("--json", tmp_path / "it.json"),
        cwd=REPOSITORY,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "it.json").read_text())
    assert [(row["algorithm"], row["in_place"], row["errors"]) for row in rows] == [
        ("mpi", False, 0),
        ("mpi", True, 0),
        ("gloo", False, 0),
        ("gloo", True, 0),
    ]
    assert {row["place"] for row in rows} == {"2 hosts x 1 rank, 1 link of 100mbit"}
    assert rows[0]["floor_s"] == pytest.approx(262144 / (1e8 / 8), rel=0.2)
    # Faster than the links can be only by what tbf lets pass at once.
    assert all(row["time_s"] > 0.8 * row["floor_s"] for row in rows)


def test_an_up_that_is_killed_is_cleaned_up(command: Command, before: set[str]) -> None:
    for remove in ("down", "up"):
        building = start("up", "--hosts", "16", "--rate", "50mbit")
        until(lambda: existing_namespaces() != before)
        building.kill()
        building.communicate()
        assert existing_namespaces() != before
        if remove == "down":
            assert command("cluster", "down", "--name", NAME).returncode == 0
            assert existing_namespaces() == before
        else:
            assert "removing what is left" in up(command, "--hosts", "2", "--rate", "50mbit")
            assert len(existing_namespaces() - before) == 3


def test_a_lost_host_ends_the_job(command: Command, before: set[str]) -> None:
    up(command, "--hosts", "3", "--rate", "50mbit")
    program = "from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\nprint('ready', flush=True)\nwhile True: pass"
    job = start("run", "--", sys.executable, "-c", program)
    assert job.stdout is not None
    assert [job.stdout.readline().strip() for _ in range(3)] == ["ready"] * 3
    for process in processes_in([f"ddl-{NAME}-h2"]):
        os.kill(process, signal.SIGKILL)
    _, errors = job.communicate(timeout=WAIT_S)
    assert job.returncode != 0, errors
    until(lambda: not processes_in(Shape(NAME, 3, 5e7).namespaces))


def test_down_ends_what_runs(command: Command, before: set[str]) -> None:
    up(command, "--hosts", "2", "--rate", "50mbit")
    job = start("run", "--", "sh", "-c", "echo ready; sleep 1000")
    assert job.stdout is not None
    assert job.stdout.readline().strip() == "ready"
    assert command("cluster", "down", "--name", NAME).returncode == 0
    job.communicate(timeout=WAIT_S)
    assert job.returncode != 0
    assert existing_namespaces() == before


def test_two_clusters_stand_side_by_side(command: Command, before: set[str]) -> None:
    up(command, "--hosts", "2", "--rate", "50mbit")
    other = command("cluster", "up", "--name", f"{NAME}b", "--hosts", "2", "--rate", "50mbit")
    assert other.returncode == 0, other.stderr
    assert command("cluster", "down", "--name", NAME).returncode == 0
    done = command("cluster", "run", "--name", f"{NAME}b", "--", "hostname")
    assert sorted(done.stdout.split()) == [f"{NAME}b-h1", f"{NAME}b-h2"]


def test_foreign_namespaces_are_left_alone(command: Command, before: set[str]) -> None:
    foreign = f"ddl-{NAME}-h2"
    subprocess.run(["ip", "netns", "add", foreign], check=True)
    try:
        done = command("cluster", "up", "--name", NAME, "--hosts", "2", "--rate", "50mbit")
        assert done.returncode == 2
        assert f"{foreign} exist and are not known to be ours" in done.stderr
        assert command("cluster", "down", "--name", NAME).returncode == 0
        assert foreign in existing_namespaces()
    finally:
        subprocess.run(["ip", "netns", "del", foreign], check=True)


def test_a_link_that_is_not_as_asked_for_is_refused(
    before: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ddltrain.cli.main import main
    from ddltrain.cluster import network

    limit = network._limit
    monkeypatch.setattr(
        network, "_limit", lambda device, rate_bits_s, *more: limit(device, rate_bits_s / 2, *more)
    )
    assert main(["cluster", "up", "--name", NAME, "--hosts", "2", "--rate", "50mbit"]) == 2
    assert "50% less" in capsys.readouterr().err
    assert existing_namespaces() == before


def test_an_uplink_that_is_not_as_asked_for_is_refused(
    before: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each host's own link is as asked for, and hides it until several send at once."""
    from ddltrain.cli.main import main
    from ddltrain.cluster import network

    limit = network._limit
    monkeypatch.setattr(
        network,
        "_limit",
        lambda device, rate_bits_s, *more: limit(
            device, rate_bits_s * (2 if device[:2] in ("up", "dn") else 1), *more
        ),
    )
    words = ["--hosts", "4", "--rate", "20mbit", "--racks", "2", "--uplink", "20mbit"]
    assert main(["cluster", "up", "--name", NAME, *words]) == 2
    assert "uplink of rack 0 carries" in capsys.readouterr().err
    assert existing_namespaces() == before


def until(condition: Callable[[], bool]) -> None:
    """Waits for what should come soon."""
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
