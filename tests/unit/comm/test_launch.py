"""What the launcher makes of a job's end; a shell stands in for mpiexec, and sends us the signals itself."""

import os

import pytest

from ddltrain.comm.supervise import Supervisor
from ddltrain.errors import EXIT_KILLED, EXIT_STOPPED

SIGNAL_US = "kill -USR1 $PPID; sleep 0.5"
STARTED = """echo '::ddltrain:: {"kind": "started", "hosts": ["a", "b"]}' >&2; sleep 0.5"""
DONE = """echo '::ddltrain:: {"kind": "status", "status": 75}' >&2"""


@pytest.mark.parametrize(
    ("script", "status", "is_fault", "words"),
    [
        (f"{STARTED}; {DONE}; exit 0", 75, False, ""),
        (
            f"{STARTED}; exit 0",
            1,
            True,
            "no rank told why",
        ),  # mpiexec calls it a success, and no rank told so
        (f"{STARTED}; exit 3", 3, True, "status 3"),
        (f"{STARTED}; kill -9 $$", 137, True, "status 137"),
        (
            f"trap '' USR1; {STARTED}; {SIGNAL_US}; exit 3",
            3,
            True,
            "status 3",
        ),  # told to stop, and failed at it
        (f"trap '' USR1; {STARTED}; {SIGNAL_US}; {SIGNAL_US}; exit 3", EXIT_KILLED, False, "second signal"),
        (f"{SIGNAL_US}; exit 3", EXIT_STOPPED, False, "before the ranks had started"),
        ("echo hear this >&2; exit 3", 3, True, "hear this"),
    ],
)
def test_the_status_says_what_happened(
    script: str, status: int, is_fault: bool, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    ending = Supervisor(["sh", "-c", script], dict(os.environ)).run()
    ending.explain()
    assert (ending.status, ending.is_fault) == (status, is_fault)
    errors = capfd.readouterr().err
    assert words in errors if words else errors == ""


def test_an_mpiexec_that_does_not_end_after_a_failure_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddltrain.comm.supervise._END_TIMEOUT_S", 0.1)
    monkeypatch.setattr("ddltrain.comm.supervise._KILL_TIMEOUT_S", 0.5)
    failed = '{"kind": "failed", "rank": 1, "world_size": 2, "host": "b", "text": "ValueError: no", "weight": 0, "is_users": false}'
    script = f"trap '' TERM; echo '::ddltrain:: {failed}' >&2; while true; do sleep 0.1; done"
    ending = Supervisor(["sh", "-c", script], dict(os.environ)).run()
    assert ending.status == 137
    assert str(ending.cause) == "rank 1/2 on host b: ValueError: no"
