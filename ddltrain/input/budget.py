"""How much memory the images need, how much there is, and so in how many groups of hosts they are held."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ddltrain.comm.topology import Topology
from ddltrain.errors import DataError, RecipeError

# Of each record, once a rank: place, size, label and order take less than 24; the rest is for the next epoch's being worked out.
INDEX_BYTES = 48

_USABLE = 0.9  # of what is free; the rest is left to the model and to what else runs
_MOVING = (
    1.1  # a share is uneven by a little, and a segment of it, a 16th at most, is held twice while it travels
)


@dataclass(frozen=True)
class Option:
    """A way to hold the images: `groups` of ranks with a whole copy each, and the bytes that each host needs."""

    groups: tuple[tuple[int, ...], ...]
    needs: tuple[int, ...]

    def fits(self, free: Sequence[int]) -> bool:
        """Whether no host needs more than it has."""
        return all(need <= own for need, own in zip(self.needs, free, strict=True))


@dataclass(frozen=True)
class Demand:
    """What is to be held.

    Attributes:
        image_bytes, num_records: of the training images.
        dealt_bytes: of other images, dealt over all ranks.
        rank_bytes: what each rank needs besides.
    """

    image_bytes: int
    num_records: int
    dealt_bytes: int = 0
    rank_bytes: int = 0


def option_of(topology: Topology, num_groups: int, demand: Demand) -> Option:
    """What it takes to hold the images in `num_groups` groups of consecutive hosts, of sizes that differ by at most one.

    With as many groups as hosts, each host holds a copy that its ranks share. With fewer, each rank of a group holds a share.
    """
    num_hosts = len(topology.hosts)
    parts = np.array_split(np.arange(num_hosts), num_groups)
    groups = tuple(tuple(sorted(rank for host in part for rank in topology.hosts[host])) for part in parts)
    needs = []
    for part, group in zip(parts, groups, strict=True):
        for host in part:
            num_ranks = len(topology.hosts[host])
            images = demand.image_bytes
            if num_groups < num_hosts:
                images = int(num_ranks * demand.image_bytes / len(group) * _MOVING)
            dealt = demand.dealt_bytes * num_ranks // topology.world_size
            own = demand.rank_bytes + INDEX_BYTES * demand.num_records
            needs.append(images + dealt + num_ranks * own)
    return Option(groups, tuple(needs))


def choose_groups(
    topology: Topology, demand: Demand, free: Sequence[int], num_groups: int | str
) -> tuple[Option, list[str]]:
    """As many groups as fit, or `num_groups` if that is not "auto".

    Args:
        free: bytes free on each host.

    Returns:
        The option, and lines that say how much each way needs.

    Raises:
        RecipeError: more groups than hosts.
        DataError: it does not fit; both are the same on all ranks.
    """
    num_hosts = len(topology.hosts)
    if isinstance(num_groups, int) and num_groups > num_hosts:
        raise RecipeError(
            f"data.groups = {num_groups} needs as many hosts, and there are {num_hosts}; set data.groups={num_hosts} or auto"
        )
    usable = [int(_USABLE * own) for own in free]
    wanted = [num_groups] if isinstance(num_groups, int) else range(num_hosts, 0, -1)
    options = [option_of(topology, count, demand) for count in wanted]
    chosen = next((option for option in options if option.fits(usable)), None)
    lines = [
        f"memory: {'-> ' if option is chosen else ''}{_told(option, usable)}"
        for option in options
        if option is chosen or _is_told(len(option.groups), num_hosts)
    ]
    if chosen is None:
        dropped = "" if num_groups == "auto" else "set data.groups=auto, "
        raise DataError(
            f"the images do not fit in memory: {_told(options[-1], usable)} (90 % of what is free); {dropped}use more hosts, "
            "prepare smaller pictures (--size shorter=256), or free memory"
        )
    return chosen, lines


def check_room(needs: Sequence[int], free: Sequence[int]) -> None:
    """Refuse what does not fit.

    Args:
        needs, free: bytes by host.

    Raises:
        DataError: some host has less than it needs; the same on all ranks.
    """
    choice = Option(tuple((host,) for host in range(len(needs))), tuple(needs))
    usable = [int(_USABLE * own) for own in free]
    if not choice.fits(usable):
        raise DataError(
            f"the images do not fit in memory: {_most(choice, usable)} (90 % of what is free); use more hosts, prepare smaller "
            "pictures (--size shorter=256), or free memory"
        )


def free_bytes(meminfo: Path = Path("/proc/meminfo"), root: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of memory that this process may still use: what the system has available, less where a control group limits it."""
    amounts = dict(line.split(":") for line in meminfo.read_text().splitlines() if ":" in line)
    free = int(amounts["MemAvailable"].split()[0]) << 10
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            base = root / controllers
            own = base / path.lstrip("/")
            for folder in (own, *own.parents):
                free = min(free, _room(folder, free))
                if folder == base:
                    break
    return max(0, free)


def _room(folder: Path, unlimited: int) -> int:
    """What a control group leaves. Cached files count as its own, and are given up where memory is needed."""
    for limit_file, usage_file, prefix in (
        ("memory.max", "memory.current", ""),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ):
        try:
            limit = (folder / limit_file).read_text().strip()
            if limit == "max":
                return unlimited
            used = int((folder / usage_file).read_text())
            facts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except OSError:
            continue
        cached = sum(int(facts.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
        return int(limit) - used + cached
    return unlimited


def _told(option: Option, usable: Sequence[int]) -> str:
    """A way to hold the images, and what that takes."""
    num_groups = len(option.groups)
    if num_groups == len(usable):
        return f"whole on each host: {_most(option, usable)}"
    sizes = sorted({len(group) for group in option.groups})
    return f"in {num_groups} group(s) of {' or '.join(map(str, sizes))} ranks: {_most(option, usable)}"


def _most(option: Option, usable: Sequence[int]) -> str:
    """What the host needs that has least to spare."""
    host = max(range(len(usable)), key=lambda index: option.needs[index] - usable[index])
    return (
        f"host {host} needs {_told_bytes(option.needs[host])} and may use {_told_bytes(max(0, usable[host]))}"
    )


def _told_bytes(count: int) -> str:
    unit, name = (1 << 30, "GiB") if count >= 1 << 30 else (1 << 20, "MiB")
    return f"{count / unit:.2f} {name}"


def _is_told(num_groups: int, num_hosts: int) -> bool:
    """Of many ways those with whole copies on 1, 2, 4, 8... hosts."""
    return num_groups in {max(1, num_hosts >> shift) for shift in range(num_hosts.bit_length())}
