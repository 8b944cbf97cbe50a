"""Looks at all hosts at once before a job starts, and says what differs or is missing."""

import concurrent.futures
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddltrain.doctor.checks import format_bytes
from ddltrain.doctor.facts import Facts, facts_from_dict
from ddltrain.doctor.interfaces import shared_network
from ddltrain.launch.hosts import Host
from ddltrain.launch.look import MARK
from ddltrain.launch.place import Place

_TIMEOUT_S = 30.0
_CLOCK_TOLERANCE_S = 5.0
_LITTLE_MEMORY_BYTES = 1 << 30
_LITTLE_SHM_BYTES = 32 << 20


@dataclass(frozen=True)
class Look:
    """What was seen of one host.

    Attributes:
        error: why nothing was seen; "" else.
        unreachable: hosts that this one does not reach.
        data, data_error: fingerprint of the data set, or why there is none.
        clock_offset_s: its clock's lead over ours.
    """

    error: str = ""
    facts: Facts | None = None
    unreachable: tuple[str, ...] = ()
    data: str = ""
    data_error: str = ""
    clock_offset_s: float = 0.0


@dataclass(frozen=True)
class Row:
    """One line of the table: what each host has.

    Attributes:
        problem: why the job cannot start, "" if nothing is in the way.
        warning: what may slow it down.
    """

    what: str
    values: tuple[str, ...]
    problem: str = ""
    warning: str = ""


def look_at_hosts(place: Place, data: str) -> list[Look]:
    """Look at all hosts in parallel. Takes as long as the slowest one, at most half a minute."""
    with concurrent.futures.ThreadPoolExecutor(len(place.hosts)) as pool:
        return list(pool.map(lambda host: _look_at(place, host, data), place.hosts))


def lost_hosts(hosts: Sequence[Host], looks: Sequence[Look]) -> list[Host]:
    """The hosts without which all others answer and reach each other; as few as can be."""
    left = {host.name: look for host, look in zip(hosts, looks, strict=True) if not look.error}
    while True:
        # A broken way counts for both ends: the host that is off the network has the most of them.
        broken = [(name, other) for name, look in left.items() for other in look.unreachable if other in left]
        if not broken:
            return [host for host in hosts if host.name not in left]
        count = {name: sum(name in way for way in broken) for name in left}
        del left[max(left, key=lambda name: count[name])]


def compare(hosts: Sequence[Host], looks: Sequence[Look]) -> list[Row]:
    """The table. Hosts that did not answer have "-"."""
    seen = [look.facts for look in looks]
    texts: list[tuple[str, Callable[[Facts], str]]] = [
        ("ddltrain", lambda facts: f"{facts.ddltrain} (source {facts.source})"),
        ("Python", lambda facts: facts.python),
        ("torch", lambda facts: facts.torch or "missing"),
        ("MPI", lambda facts: facts.mpi or f"missing: {facts.mpi_error}"),
        ("extension", lambda facts: facts.extension or f"missing: {facts.extension_error}"),
    ]
    rows = [_reach_row(hosts, looks)]
    for what, text in texts:
        values = tuple(text(facts) if facts else "-" for facts in seen)
        missing = any("missing" in value for value in values)
        differs = len(set(values) - {"-"}) > 1
        problem = "it is missing" if missing else "it must be the same everywhere" if differs else ""
        rows.append(Row(what, values, problem))
    return [*rows, _data_row(looks), *_size_rows(hosts, seen), _clock_row(looks)]


def table(hosts: Sequence[Host], rows: Sequence[Row]) -> list[str]:
    """For people: one line for each thing, with the hosts' names where they differ."""
    names = [host.name for host in hosts]
    lines = []
    for row in rows:
        groups: dict[str, list[str]] = {}
        for name, value in zip(names, row.values, strict=True):
            groups.setdefault(value, []).append(name)
        for nothing in ("", "-"):
            groups.pop(nothing, None)
        if not groups:
            continue
        is_same = len(set(row.values)) == 1
        texts = [value if is_same else f"{value} on {_listed(owners)}" for value, owners in groups.items()]
        note = (
            f"   <- PROBLEM: {row.problem}"
            if row.problem
            else f"   <- warning: {row.warning}"
            if row.warning
            else ""
        )
        lines.append(f"  {row.what:<10} {'; '.join(texts)}{note}")
    return lines


def cores_of_a_rank(hosts: Sequence[Host], looks: Sequence[Look]) -> int:
    """Whole cores that each rank of every host can have; 0 where there are fewer cores than ranks."""
    return min(
        (
            look.facts.usable_cores() // host.num_ranks
            for host, look in zip(hosts, looks, strict=True)
            if look.facts
        ),
        default=0,
    )


def choose_network(place: Place, looks: Sequence[Look], by_name: bool) -> str:
    """The network that all hosts share, as MPI takes it; "" where nothing is to be told.

    Args:
        by_name: the interface's name is wanted, not its addresses.
    """
    facts = [look.facts for look in looks if look.facts]
    if place.interface or len(facts) < 2:
        return place.interface
    network = shared_network([one.interfaces for one in facts])
    if not by_name or not network:
        return network
    names = {one.name for host in facts for one in host.interfaces if one.network == network}
    return names.pop() if len(names) == 1 else ""


def clean_up(place: Place, job: str) -> None:
    """End on all hosts what is left of a job."""

    def clean(host: Host) -> None:
        words = place.command_on(host, [sys.executable, "-m", "ddltrain.launch.look", "after", job])
        subprocess.run(words, capture_output=True, check=False, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL)

    with concurrent.futures.ThreadPoolExecutor(len(place.hosts)) as pool:
        for done in [pool.submit(clean, host) for host in place.hosts]:
            done.exception()  # a host that is gone has nothing left that we could end


def _look_at(place: Place, host: Host, data: str) -> Look:
    others = [other.name for other in place.hosts if other != host]
    words = [sys.executable, "-m", "ddltrain.launch.look", "before", data, *others]
    command = place.command_on(host, words)
    try:
        done = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    except OSError as error:
        return Look(error=f"{command[0]}: {error.strerror}")
    try:
        output, errors = done.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        done.kill()
        done.communicate()
        return Look(error=f"no answer within {_TIMEOUT_S:.0f} s")
    now_s = time.time()
    line = next((line for line in output.splitlines() if line.startswith(MARK)), "")
    if not line:
        said = [text for text in errors.splitlines() if text.strip()]
        return Look(error=said[-1] if said else f"status {done.returncode}")
    try:
        entries = json.loads(line.removeprefix(MARK))
        facts = facts_from_dict(entries["facts"])
    except (KeyError, TypeError, ValueError):
        return Look(error="another version of ddltrain answers there")
    return Look(
        facts=facts,
        unreachable=tuple(entries["unreachable"]),
        data=entries["data"],
        data_error=entries["data_error"],
        clock_offset_s=facts.time_s - now_s,
    )


def _reach_row(hosts: Sequence[Host], looks: Sequence[Look]) -> Row:
    values = tuple(
        look.error or (f"does not reach {_listed(look.unreachable)}" if look.unreachable else "yes")
        for look in looks
    )
    problem = "every host must be reached, by this one and by the others" if set(values) != {"yes"} else ""
    return Row("reached", values, problem)


def _data_row(looks: Sequence[Look]) -> Row:
    values = tuple(look.data or look.data_error or ("-" if look.error else "") for look in looks)
    if any(look.data_error for look in looks):
        return Row("data", values, "every host reads the data by the same path")
    differs = len({look.data for look in looks if look.data}) > 1
    return Row("data", values, "it must be the same everywhere" if differs else "")


def _size_rows(hosts: Sequence[Host], seen: Sequence[Facts | None]) -> list[Row]:
    crowded = [
        host.name
        for host, facts in zip(hosts, seen, strict=True)
        if facts and facts.usable_cores() < host.num_ranks
    ]
    small = [facts.host for facts in seen if facts and facts.available_bytes < _LITTLE_MEMORY_BYTES]
    tight = [facts.host for facts in seen if facts and facts.shm_free_bytes < _LITTLE_SHM_BYTES]
    return [
        Row(
            "cores",
            tuple(str(facts.usable_cores()) if facts else "-" for facts in seen),
            warning=f"fewer than ranks on {_listed(crowded)}" if crowded else "",
        ),
        Row(
            "memory",
            tuple(f"{_rounded(facts.available_bytes)} free" if facts else "-" for facts in seen),
            warning=f"little on {_listed(small)}" if small else "",
        ),
        Row(
            "/dev/shm",
            tuple(f"{_rounded(facts.shm_free_bytes)} free" if facts else "-" for facts in seen),
            warning=f"little on {_listed(tight)}" if tight else "",
        ),
        Row("GPUs", tuple(str(len(facts.gpus)) if facts else "-" for facts in seen)),
    ]


def _clock_row(looks: Sequence[Look]) -> Row:
    def text(look: Look) -> str:
        if not look.facts:
            return "-"
        is_right = abs(look.clock_offset_s) <= _CLOCK_TOLERANCE_S
        return "as here" if is_right else f"{look.clock_offset_s:+.0f} s from ours"

    values = tuple(map(text, looks))
    wrong = set(values) - {"as here", "-"}
    return Row(
        "clock", values, f"set the clocks: more than {_CLOCK_TOLERANCE_S:.0f} s apart" if wrong else ""
    )


def _rounded(size_bytes: int) -> str:
    """Coarse, so that hosts that are alike look alike."""
    return format_bytes(size_bytes).split(".")[0] + " " + format_bytes(size_bytes).split(" ")[1]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"
