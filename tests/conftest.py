"""What several tests need: real pictures where they are at hand, a prepared data set, and the commands as a user runs them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# Machines differ in speed: no example fails for being slow. In CI the same examples come every time.
settings.register_profile("ddltrain", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("ddltrain")
torch.set_num_threads(1)  # small tensors: threads only get in each other's way

REPOSITORY = Path(__file__).parent.parent
RECIPE = REPOSITORY / "models" / "resnet20-cifar" / "digits.toml"
COMMAND_TIMEOUT_S = 240

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real pictures; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("DDL_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no test pictures at {folder}; set DDL_TEST_DATA")
    return folder


@pytest.fixture(scope="session")
def command() -> Command:
    """Runs `ddltrain ...` to its end, as a user would, and gives its output and status."""

    def run(*words: object, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ddltrain", *map(str, words)],
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            cwd=cwd,
            env=os.environ | environment,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory, command: Command) -> Path:
    """The built-in digits, prepared once."""
    out = tmp_path_factory.mktemp("data") / "digits"
    done = command("prepare", "digits", out)
    assert done.returncode == 0, done.stderr
    return out
