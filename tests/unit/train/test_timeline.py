"""Spans, their file and the breakdown, on one rank; on two hosts with clocks that differ."""

import json
import threading
import time
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import torch

from ddltrain.comm.world import World
from ddltrain.train import timeline as module
from ddltrain.train.timeline import Timeline, no_spans

CPU = torch.device("cpu")


class Comm:
    """What a timeline takes of MPI, between threads."""

    def __init__(self, rank: int, size: int, shared: dict[str, Any]) -> None:
        self.rank, self.size, self._shared = rank, size, shared
        self._num_calls = 0

    @staticmethod
    def world(size: int, hosts: list[str]) -> list[World]:
        shared = {"barrier": threading.Barrier(size, timeout=20), "mail": {}, "table": {}}
        shared["mail"] = {(a, b): Queue() for a in range(size) for b in range(size)}
        comms = [Comm(rank, size, shared) for rank in range(size)]
        return [World(c.rank, size, 0, 1, hosts[c.rank], c) for c in comms]  # type: ignore[arg-type]

    def allgather(self, value: Any) -> list[Any]:
        self._num_calls += 1
        self._shared["table"][self._num_calls, self.rank] = value
        self._shared["barrier"].wait()
        return [self._shared["table"][self._num_calls, rank] for rank in range(self.size)]

    def gather(self, value: Any) -> list[Any] | None:
        values = self.allgather(value)
        return values if self.rank == 0 else None

    def send(self, value: Any, to: int) -> None:
        self._shared["mail"][self.rank, to].put(value)

    def recv(self, source: int) -> Any:
        return self._shared["mail"][source, self.rank].get(timeout=20)


def spans_of(file: Path) -> list[dict[str, Any]]:
    return [event for event in json.loads(file.read_text())["traceEvents"] if event["ph"] == "X"]


def test_spans_nest_and_only_the_outer_ones_count(tmp_path: Path) -> None:
    timeline = Timeline(Comm.world(1, ["here"])[0], CPU)
    for _ in range(3):
        with timeline("step"):
            time.sleep(0.002)
            with timeline('in"ner'):
                time.sleep(0.002)
    with pytest.raises(ZeroDivisionError), timeline("fails"):
        raise ZeroDivisionError
    breakdown = timeline.write(tmp_path / "timeline.json")
    spans = spans_of(tmp_path / "timeline.json")
    assert [span["name"] for span in spans] == ['in"ner', "step"] * 3 + ["fails"]
    assert spans[0]["ts"] > spans[1]["ts"] == 0
    for inner, outer in zip(spans[0:6:2], spans[1:6:2], strict=True):
        assert outer["ts"] <= inner["ts"]
        assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
        assert inner["dur"] > 1900
    assert list(breakdown.spans_s) == ["step", "fails", 'in"ner']
    assert breakdown.spans_s["step"] == pytest.approx(sum(span["dur"] for span in spans[1:6:2]) / 1e6)
    assert breakdown.spans_s['in"ner'] == 0
    assert breakdown.total_s >= breakdown.spans_s["step"]


def test_buckets_have_rows_of_their_own_and_waits_count_as_exposed(tmp_path: Path) -> None:
    start_ns = time.perf_counter_ns()
    after = [start_ns + milliseconds * 1_000_000 for milliseconds in range(10)]
    sums = [
        ("bucket 1", after[1], after[4]),
        ("bucket 0", after[2], after[5]),  # partly beside the other
        ("bucket 1", after[7], after[8]),
        ("", after[8], after[9]),  # no gradients
    ]
    timeline = Timeline(Comm.world(1, ["here"])[0], CPU, lambda: sums)
    with timeline("all-reduce"):
        pass
    breakdown = timeline.write(tmp_path / "timeline.json")
    assert breakdown.comm_s == pytest.approx(0.005)
    assert breakdown.comm_exposed_s == breakdown.spans_s["all-reduce"] > 0
    rows = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    titles = {row["tid"]: row["args"]["name"] for row in rows if row["ph"] == "M"}
    assert titles == {0: "rank 0 on here", 1: "bucket 0", 2: "bucket 1"}
    drawn = [(row["tid"], row["name"], row["dur"]) for row in rows if row["ph"] == "X"][1:]
    assert drawn == [(1, "bucket 0", 3000), (2, "bucket 1", 3000), (2, "bucket 1", 1000)]


def test_a_rank_keeps_a_bounded_number_of_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SPANS", 5)
    timeline = Timeline(Comm.world(1, ["here"])[0], CPU)
    for _ in range(9):
        with timeline("one"):
            pass
    timeline.write(tmp_path / "timeline.json")
    assert len(spans_of(tmp_path / "timeline.json")) == 5
    assert "4 later spans left out" in (tmp_path / "timeline.json").read_text()


def test_ranks_of_other_hosts_come_onto_one_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second host's clock is an hour ahead, and gains a tenth: the same moments get the same times all the same."""
    start_ns = time.perf_counter_ns()
    real = time.perf_counter_ns

    def clock() -> int:
        now_ns = real()
        is_ahead = threading.current_thread().name == "rank 1"
        return now_ns + 3_600_000_000_000 + (now_ns - start_ns) // 10 if is_ahead else now_ns

    monkeypatch.setattr(module.time, "perf_counter_ns", clock)
    worlds = Comm.world(2, ["a", "b"])
    together = threading.Barrier(2, timeout=20)

    def work(rank: int) -> None:
        timeline = Timeline(worlds[rank], CPU)
        for _ in range(4):
            together.wait()
            with timeline("one"):
                time.sleep(0.05)
        timeline.write(tmp_path / "timeline.json")

    threads = [threading.Thread(target=work, args=(rank,), name=f"rank {rank}") for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spans = spans_of(tmp_path / "timeline.json")
    starts = [[span["ts"] for span in spans if span["pid"] == rank] for rank in range(2)]
    assert len(starts[0]) == len(starts[1]) == 4
    for one, other in zip(*starts, strict=True):
        assert abs(one - other) < 20_000  # microseconds; without the correction some 3.6e9
    assert '"rank 1 on b"' in (tmp_path / "timeline.json").read_text()


def test_nothing_is_kept_unless_asked_for() -> None:
    with no_spans("one"):
        pass
