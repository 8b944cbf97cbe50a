"""The C++ core under sanitizers, without Python.

Kernels, barriers and plans in threads; the executor under mpiexec, and with threads in place of ranks, since MPI's own library is not built
for the sanitizer of threads.
"""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from ddltrain.comm.launch import find_mpiexec, mpiexec_command

HERE = Path(__file__).parent
SOURCES = HERE.parent.parent / "csrc" / "comm"
TIMEOUT_S = 240

# MPI's own library is not built for sanitizers and keeps memory to its end.
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}


def mpi_flags() -> list[str]:
    mpicc = os.environ.get("MPICC") or str(Path(find_mpiexec()).parent / "mpicc")
    shown = subprocess.run([mpicc, "-show"], check=True, capture_output=True, text=True).stdout
    return [*shlex.split(shown)[1:], "-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX"]


def build(out: Path, sanitizers: str, sources: list[Path], flags: list[str]) -> str:
    """Compile a driver with the parts of the core that it needs."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    assert compiler, "no C++ compiler"
    options = ["-std=c++20", "-O1", "-g", f"-fsanitize={sanitizers}", f"-I{SOURCES}", "-pthread"]
    command = [compiler, *options, *map(str, sources), "-o", str(out), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return str(out)


def run(command: list[str], **environment: str) -> None:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=os.environ | ENVIRONMENT | environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-8000:]


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_the_core_in_threads(tmp_path: Path, sanitizers: str) -> None:
    parts = [SOURCES / f"{name}.cpp" for name in ("reduce", "barrier", "plan")]
    run([build(tmp_path / "core", sanitizers, [HERE / "core.cpp", *parts], [])])


def test_the_executor_with_threads_for_ranks(tmp_path: Path) -> None:
    parts = [path for path in SOURCES.glob("*.cpp") if path.stem not in ("bindings", "communicator")]
    drivers = [HERE / "drive.cpp", *(HERE / "threads").glob("*.cpp")]
    run([build(tmp_path / "threads", "thread", [*drivers, *parts], [f"-I{HERE / 'threads'}"])])


def test_the_executor_on_ranks(tmp_path: Path) -> None:
    parts = [path for path in SOURCES.glob("*.cpp") if path.name != "bindings.cpp"]
    driver = build(
        tmp_path / "ranks", "address,undefined", [HERE / "ranks.cpp", HERE / "drive.cpp", *parts], mpi_flags()
    )
    mpiexec = find_mpiexec()
    version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False).stdout
    words, environment = mpiexec_command(mpiexec, version, 3)
    run([*words, driver], **environment)
