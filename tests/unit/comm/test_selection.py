"""Which algorithm is chosen from what was measured, and what is measured."""

import itertools
import time

import pytest
import torch

from ddltrain.comm import tuning
from ddltrain.comm.selection import Selection, quickest
from ddltrain.comm.topology import Topology
from ddltrain.comm.tuning import Choice, measure
from ddltrain.comm.world import World, start_world
from ddltrain.errors import CommError


@pytest.fixture
def alone() -> World:
    return start_world()


def test_between_sizes_times_are_interpolated() -> None:
    small = Choice(1 << 10, False, "mpi", {"mpi": 1e-5, "ring": 1e-4, "other": 9.0})
    large = Choice(1 << 20, False, "ring", {"mpi": 1e-2, "ring": 2e-3})
    chosen = [quickest([large, small], 1 << power) for power in range(8, 24)]
    assert [name for name, _ in itertools.groupby(chosen)] == ["mpi", "ring"]
    # On lines in logarithms, 10x behind turns into 5x ahead at log 10 / (log 10 + log 5) of the way.
    assert chosen.index("ring") + 8 == 16
    assert quickest([small], 1 << 20) == "mpi"


def test_one_size_stands_for_those_close_to_it() -> None:
    selection = Selection(Topology.of_sizes((1, 1)), "auto")
    sizes = [1000, 990, 800, 700, 100, 1000, 0]
    buffers = [torch.zeros(size, dtype=torch.uint8) for size in sizes]
    places = [False, False, False, False, False, True, False]
    assert list(selection.to_measure(buffers, places)) == [
        (1000, True),
        (1000, False),
        (700, False),
        (100, False),
    ]
    assert Selection(Topology.of_sizes((1, 1)), "ring").to_measure(buffers, places) == {}
    assert Selection(Topology.of_sizes((1,)), "auto").to_measure(buffers, places) == {}
    on_one_host = Selection(Topology.of_sizes((2,)), "auto").to_measure(buffers, places)
    assert (1000, True) not in on_one_host
    assert (1000, False) in on_one_host


def test_rules_where_nothing_was_measured() -> None:
    one_host, two_hosts = (Selection(Topology.of_sizes(sizes), "auto") for sizes in ((2,), (2, 2)))
    small, large = torch.zeros(100), torch.zeros(1 << 20)
    assert one_host.choose(large, True, None) == "shared_memory"
    assert two_hosts.choose(large, True, None) == "hierarchical"
    assert two_hosts.choose(large, False, None) == "ring"
    assert two_hosts.choose(small, False, None) == "mpi"
    assert two_hosts.choose(small.half(), False, None) == "halving_doubling"
    assert two_hosts.choose(small, False, None, "multicolor") == "multicolor"
    assert two_hosts.choose(small, False, "bf16") == "mpi"
    two_hosts.learn([Choice(400, False, "torus2d", {"torus2d": 1.0})], "bf16")
    assert two_hosts.choose(small, False, "bf16") == "torus2d"
    assert two_hosts.choose(small, False, None) == "mpi"
    with pytest.raises(CommError, match="algorithm 'rings' does not exist"):
        Selection(Topology.of_sizes((2,)), "rings")


@pytest.mark.parametrize(
    ("factor", "slow", "far", "close"), [(1, 4, 4, tuning.MAX_TURNS), (10, 1, 3, tuning.MIN_TURNS)]
)
def test_the_quickest_is_found_and_gets_enough_turns(
    alone: World, monkeypatch: pytest.MonkeyPatch, factor: float, slow: int, far: int, close: int
) -> None:
    clock_s = 0.0
    noise = itertools.cycle([0.0, 0.0002, -0.0001])
    calls: dict[str, int] = {}

    def allreduce(buffer: torch.Tensor, name: str) -> None:
        nonlocal clock_s
        calls[name] = calls.get(name, 0) + 1
        clock_s += factor * ({"slow": 0.1, "near": 0.0104, "best": 0.01, "far": 0.013}[name] + next(noise))

    monkeypatch.setattr(time, "perf_counter", lambda: clock_s)
    choice = measure(alone, torch.ones(25), False, ["slow", "near", "best", "far"], allreduce)
    assert (choice.algorithm, choice.size_bytes, choice.in_window) == ("best", 100, False)
    # Two calls before the first turn.
    assert calls == {"slow": 2 + slow, "far": 2 + far, "near": 2 + close, "best": 2 + close}
    assert choice.times_s["near"] == pytest.approx(factor * 0.0104, abs=factor * 0.0002)


def test_slow_candidates_get_the_least_number_of_turns_and_quick_ones_are_repeated(
    alone: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_s, calls = 0.0, 0

    def allreduce(buffer: torch.Tensor, name: str) -> None:
        nonlocal clock_s, calls
        calls += 1
        clock_s += float(name)

    monkeypatch.setattr(time, "perf_counter", lambda: clock_s)
    measure(alone, torch.ones(25), False, ["3.0"], allreduce)
    assert calls == 2 + tuning.MIN_TURNS
    calls = 0
    choice = measure(alone, torch.ones(25), False, ["0.0009"], allreduce)
    assert calls == 2 + tuning.MAX_TURNS * 5
    assert choice.times_s["0.0009"] == pytest.approx(0.0009)


def test_what_may_win_is_called_equally_often_in_a_turn() -> None:
    assert tuning.repeats_for([1.6e-3, 1.5e-3, 3e-3, 19e-3, 150e-3]) == [3, 3, 3, 1, 1]
    assert tuning.repeats_for([1e-6, 1e-3]) == [50, 20]
    assert tuning.repeats_for([0.2]) == [1]
