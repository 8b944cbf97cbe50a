"""Runs the tests in `ranks/` on several ranks under mpiexec. A plain pytest runs them on one rank, too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddltrain.comm.launch import find_mpiexec, mpiexec_command

TIMEOUT_S = 400


@pytest.mark.parametrize("num_ranks", [2, 3, 5, 8])
def test_on(num_ranks: int) -> None:
    mpiexec = find_mpiexec()
    version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False).stdout
    words, environment = mpiexec_command(mpiexec, version, num_ranks)
    tests = Path(__file__).parent / "ranks"
    done = subprocess.run(
        [
            *words,
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "--color=no",
            "-p",
            "no:cacheprovider",
            str(tests),
        ],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=os.environ | environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    assert done.stdout.count(" passed") == num_ranks
