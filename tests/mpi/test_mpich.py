"""The engine on MPICH, another MPI library: a shorter matrix on 2 ranks. `make mpich` builds what this needs."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import REPOSITORY

TIMEOUT_S = 300
RANKS = Path(__file__).parent / "ranks"
# Of the large matrix of algorithms and dtypes, float32.
SHORTER = "not test_every_algorithm_reduces or dtype0"


@pytest.fixture(scope="module")
def mpich() -> Path:
    """The environment that has MPICH, and in `ext` the extension built on it."""
    folder = Path(os.environ.get("DDL_MPICH", REPOSITORY / ".venv-mpich"))
    if not (folder / "ext").is_dir():
        pytest.skip(f"no MPICH build at {folder}; make one by `make mpich`, or name one by DDL_MPICH")
    return folder


def test_the_engine_on_mpich(mpich: Path, tmp_path: Path) -> None:
    package = tmp_path / "ddltrain"
    shutil.copytree(REPOSITORY / "ddltrain", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (extension,) = (mpich / "ext" / "ddltrain" / "comm").glob("_engine.*")
    shutil.copy(extension, package / "comm")
    launcher = [str(mpich / "bin" / "mpiexec"), "-n", "2", str(mpich / "bin" / "python")]
    options = ["-x", "-q", "--color=no", "-p", "no:cacheprovider", "-k", SHORTER]
    files = [str(RANKS / f"test_{name}.py") for name in ("engine", "executor", "buckets")]
    done = subprocess.run(
        [*launcher, "-m", "pytest", *options, *files],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=REPOSITORY,
        env=os.environ
        | {"PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"},  # not the package of this folder
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    assert done.stdout.count(" passed") == 2
