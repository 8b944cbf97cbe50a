"""What the launcher makes of what ranks tell."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ddltrain.comm.report import LAUNCHER_VARIABLE, Report, reporting_agent, tell, tell_end, tell_failure

LISTENER = {LAUNCHER_VARIABLE: "ddltrain train"}


def report_of(capsys: pytest.CaptureFixture[str]) -> Report:
    report = Report()
    lines = capsys.readouterr().err.splitlines()
    assert all(report.take(line) for line in lines)
    return report


def test_without_a_launcher_nothing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    tell({}, "started", hosts=["a"])
    tell_end({}, 0, 1, "a", -9)
    assert capsys.readouterr().err == ""


def test_the_state_of_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    tell(LISTENER, "started", hosts=["a", "b"])
    tell(LISTENER, "status", status=75)
    report = report_of(capsys)
    assert report.has_started
    assert report.status == 75
    assert report.hosts == {0: "a", 1: "b"}
    assert report.cause() is None
    assert not report.has_failed


@pytest.mark.parametrize("order", [1, -1])
def test_a_killed_rank_counts_more_than_those_that_noticed(
    order: int, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[Any] = [
        lambda: tell_failure(LISTENER, 0, 3, "a", "rank 2 has given up", is_consequence=True, is_users=False),
        lambda: tell_end(LISTENER, 2, 3, "c", -9),
        lambda: tell_end(LISTENER, 1, 3, "b", 14),
        lambda: tell_end(LISTENER, 1, 3, "b", -15),
    ]
    for say in told[::order]:
        say()
    report = report_of(capsys)
    assert report.has_failed
    assert str(report.cause()) == "rank 2/3 on host c: killed by signal 9 (SIGKILL)"


def test_a_rank_that_left_counts_more_than_one_that_missed_it(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    tell(LISTENER, "started", hosts=["a", "b"])
    tell_end(LISTENER, 0, 2, "a", 14)
    for line in capsys.readouterr().err.splitlines():
        report.take(line)
    assert str(report.cause()) == "rank 0/2 on host a: ended with status 14"
    assert not report.take("  Local host: a\n")
    assert not report.take("  Peer host:  b\n")
    assert str(report.cause()) == "rank 1/2 on host b: has left (rank 0 says: ended with status 14)"
    tell_end(LISTENER, 1, 2, "b", 7)
    report.take(capsys.readouterr().err)
    assert str(report.cause()) == "rank 1/2 on host b: ended with status 7"


def test_ranks_that_mpiexec_ends_are_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    tell_end(LISTENER, 1, 3, "b", -15)
    assert not report_of(capsys).has_failed


def test_the_rank_that_all_wait_for_is_the_cause(capsys: pytest.CaptureFixture[str]) -> None:
    tell(LISTENER, "started", hosts=["a", "b", "c", "d"])
    for rank, other in ((0, 3), (2, 1), (3, 2)):
        text = f"operation 5 'bucket 0' is in phase 1 of 6 and waits for rank {other} to send"
        tell(LISTENER, "waits", rank=rank, text=text)
    tell_failure(LISTENER, 0, 4, "a", "no progress for 9 s: it waits for rank 3 to send", True, False)
    cause = report_of(capsys).cause()
    assert cause is not None
    assert (cause.rank, cause.host) == (1, "b")
    assert "rank 0 says: no progress" in cause.text


def test_lines_that_mpiexec_has_marked_are_understood_and_others_left_alone() -> None:
    report = Report()
    assert report.take("[1,0]<stderr>: ::ddltrain:: " + json.dumps({"kind": "status", "status": 0}) + "\n")
    assert report.status == 0
    assert not report.take("::ddltrain:: is what they say\n")


def test_an_agent_that_ends_with_an_error_names_its_host(tmp_path: Path) -> None:
    script = tmp_path / "agent"
    script.write_text(reporting_agent(["sh", "-c", 'echo "$0: $1"; exit $1']))
    report = Report()
    for status, is_lost in (("0", False), ("255", True)):
        done = subprocess.run(["sh", script, "node7", status], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (int(status), f"node7: {status}\n")
        assert [report.take(line) for line in done.stderr.splitlines()] == [True] * is_lost
    assert str(report.cause()) == "host node7: mpiexec has lost all that it ran there"


def test_open_mpis_own_word_of_a_lost_host_counts() -> None:
    report = Report()
    assert not report.take("  HNP daemon   : [prterun-a-1@0,0] on node a\n")
    assert not report.take("  Remote daemon: [prterun-a-1@0,1] on node node7\n")
    assert str(report.cause()) == "host node7: mpiexec has lost all that it ran there"
