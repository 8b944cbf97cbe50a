"""What the launcher makes of a job's end; a shell stands in for mpiexec, and sends us the signals itself."""

import os
from pathlib import Path

import pytest

from ddltrain.comm.launch import supervise
from ddltrain.comm.world import RANKS_STARTED
from ddltrain.errors import EXIT_KILLED, EXIT_STOPPED

SIGNAL_US = "kill -USR1 $PPID; sleep 0.3"


@pytest.mark.parametrize(
    ("said", "script", "status", "words"),
    [
        ("75", "exit 0", 75, ""),
        (RANKS_STARTED, "exit 3", 3, ""),
        (RANKS_STARTED, "kill -9 $$", 137, ""),
        (RANKS_STARTED, f"trap '' USR1; {SIGNAL_US}; exit 3", 3, ""),  # told to stop, and failed at it
        (RANKS_STARTED, f"trap '' USR1; {SIGNAL_US}; {SIGNAL_US}; exit 3", EXIT_KILLED, "second signal"),
        ("", f"{SIGNAL_US}; exit 3", EXIT_STOPPED, "before the ranks had started"),
    ],
)
def test_the_status_says_what_happened(
    said: str, script: str, status: int, words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "status"
    file.write_text(said)
    assert supervise(["sh", "-c", script], dict(os.environ), file) == status
    errors = capfd.readouterr().err
    assert words in errors if words else errors == ""
