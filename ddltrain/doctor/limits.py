"""What a container, or a batch system, holds this process to: control groups of both versions."""

from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
# "No limit" of version 1 is a huge number.
_NO_LIMIT_BYTES = 1 << 60


def cgroup_cores(root: Path = _ROOT) -> float:
    """Cores' worth of processor time; 0 where there is no limit."""
    limits = []
    for folder in _folders(root):
        words = _read(folder / "cpu.max").split()
        if len(words) == 2 and words[0] != "max":
            limits.append(int(words[0]) / int(words[1]))
    quota, period = _read(root / "cpu" / "cpu.cfs_quota_us"), _read(root / "cpu" / "cpu.cfs_period_us")
    if quota.isdecimal() and period.isdecimal() and int(period):
        limits.append(int(quota) / int(period))
    return min(limits, default=0.0)


def cgroup_memory_bytes(root: Path = _ROOT) -> int:
    """Bytes of memory; 0 where there is no limit."""
    texts = [_read(folder / "memory.max") for folder in _folders(root)]
    texts.append(_read(root / "memory" / "memory.limit_in_bytes"))
    limits = [int(text) for text in texts if text.isdecimal() and int(text) < _NO_LIMIT_BYTES]
    return min(limits, default=0)


def _folders(root: Path) -> list[Path]:
    """The own group of version 2 and those above it: each may set a limit."""
    own = next(
        (line[3:] for line in _read(Path("/proc/self/cgroup")).splitlines() if line.startswith("0::")), "/"
    )
    folder = root / own.lstrip("/")
    return [folder, *(parent for parent in folder.parents if parent == root or root in parent.parents)]


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
