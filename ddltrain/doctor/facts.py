"""What this machine is, as plain values that travel as JSON. Nothing here starts MPI or imports torch, so it is quick."""

import dataclasses
import hashlib
import os
import platform
import shutil
import socket
import sys
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import ddltrain
from ddltrain.doctor.interfaces import Interface, interfaces
from ddltrain.doctor.limits import cgroup_cores, cgroup_memory_bytes

SHARED_MEMORY = Path("/dev/shm")

# What the reductions are compiled for, widest first, and the processor's own names of what that takes.
_KERNELS = (
    ("AVX-512", {"avx512f", "avx512bw", "avx512dq", "avx512vl"}),
    ("AVX2", {"avx2"}),
)


@dataclass(frozen=True)
class Facts:
    """One machine.

    Attributes:
        source: digest of this package's Python files, so that two versions of the same number are told apart.
        mpi: the MPI library that mpi4py loads, by its own words; "" where there is none, and `mpi_error` says why.
        extension: the MPI library that our extension runs on; "" where it is not built, and `extension_error` says why.
        allowed_cores: cores that this process may use, by its binding.
        cgroup_cores, cgroup_memory_bytes: what a container is held to; 0 where there is no limit.
        shm_bytes, shm_free_bytes: of /dev/shm; 0 where there is none.
        kernels: the instruction set that reductions use.
        time_s: the clock, seconds since 1970.
    """

    host: str
    ddltrain: str
    source: str
    python: str
    executable: str
    torch: str
    torchvision: str
    mpi4py: str
    mpi: str
    mpi_file: str
    mpi_error: str
    extension: str
    extension_error: str
    processor: str
    cores: int
    allowed_cores: int
    cgroup_cores: float
    ram_bytes: int
    available_bytes: int
    cgroup_memory_bytes: int
    shm_bytes: int
    shm_free_bytes: int
    open_files: int
    kernels: str
    gpus: tuple[str, ...]
    interfaces: tuple[Interface, ...]
    time_s: float

    def usable_cores(self) -> int:
        """Whole cores that ranks here may use, at least 1."""
        quota = self.cgroup_cores or self.allowed_cores
        return max(1, min(self.allowed_cores, int(quota)))


def gather_facts() -> Facts:
    """Look at this machine. Takes some tenths of a second."""
    mpi, mpi_file, mpi_error = _mpi()
    extension, extension_error = _extension() if mpi else ("", "no MPI library to load it with")
    memory = _meminfo()
    shm = shutil.disk_usage(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else None
    flags = _cpuinfo("flags").split()
    return Facts(
        host=socket.gethostname(),
        ddltrain=ddltrain.__version__,
        source=_source_digest(),
        python=platform.python_version(),
        executable=sys.executable,
        torch=_version("torch"),
        torchvision=_version("torchvision"),
        mpi4py=_version("mpi4py"),
        mpi=mpi,
        mpi_file=mpi_file,
        mpi_error=mpi_error,
        extension=extension,
        extension_error=extension_error,
        processor=_cpuinfo("model name") or platform.machine(),
        cores=os.cpu_count() or 1,
        allowed_cores=len(os.sched_getaffinity(0)),
        cgroup_cores=cgroup_cores(),
        ram_bytes=memory.get("MemTotal", 0),
        available_bytes=memory.get("MemAvailable", 0),
        cgroup_memory_bytes=cgroup_memory_bytes(),
        shm_bytes=shm.total if shm else 0,
        shm_free_bytes=shm.free if shm else 0,
        open_files=_open_files(),
        kernels=next((name for name, needed in _KERNELS if needed <= set(flags)), "the compiler's baseline"),
        gpus=_gpus(),
        interfaces=tuple(interfaces()),
        time_s=time.time(),
    )


def facts_to_dict(facts: Facts) -> dict[str, object]:
    """For JSON."""
    return dataclasses.asdict(facts)


def facts_from_dict(entries: dict[str, object]) -> Facts:
    """The inverse of `facts_to_dict`, after JSON.

    Raises:
        TypeError, KeyError: written by another version.
    """
    known = {field.name: entries[field.name] for field in dataclasses.fields(Facts)}
    listed = known["interfaces"]
    gpus = known["gpus"]
    assert isinstance(listed, list)
    assert isinstance(gpus, list)
    known |= {"interfaces": tuple(Interface(**entry) for entry in listed), "gpus": tuple(gpus)}
    return Facts(**known)  # type: ignore[arg-type]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _source_digest() -> str:
    root = Path(ddltrain.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def _mpi() -> tuple[str, str, str]:
    """Name and version of the MPI library, its file, and why there is none. MPI is loaded but not started."""
    try:
        import mpi4py

        if "mpi4py.MPI" not in sys.modules:
            mpi4py.rc.initialize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        return "", "", str(error).splitlines()[0]
    files = {
        line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libmpi" in line
    }
    name = MPI.Get_library_version().split("\0")[0].split(",")[0].splitlines()[0].strip()
    return name, ", ".join(sorted(files)), ""


def _extension() -> tuple[str, str]:
    try:
        from ddltrain.comm import _engine
    except ImportError as error:
        return "", str(error)
    return _engine.mpi_library_version().split(",")[0].splitlines()[0].strip(), ""


def _cpuinfo(name: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _meminfo() -> dict[str, int]:
    """Bytes by the kernel's names."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}


def _open_files() -> int:
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _gpus() -> tuple[str, ...]:
    """The models of NVIDIA's GPUs, as their driver tells."""
    found = []
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = file.read_text().splitlines()
        found.append(
            next((line.partition(":")[2].strip() for line in lines if line.startswith("Model")), "GPU")
        )
    return tuple(found)
