"""The hosts of a job and how many ranks each gets: from the command line, a file, or Slurm's allocation."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddltrain.errors import LaunchError


@dataclass(frozen=True)
class Host:
    """A host of a job. `group` names what it shares with near ones, such as a rack; "" where nothing is known."""

    name: str
    num_ranks: int
    group: str = ""


def parse_hosts(text: str) -> list[Host]:
    """The hosts of ``a:4,b:4``; one rank where there is no number.

    Raises:
        LaunchError: not of this form, or a host named twice.
    """
    hosts = [_parse_host(part.strip()) for part in text.split(",")]
    return _checked(hosts, f"--hosts {text}")


def read_hostfile(path: Path) -> list[Host]:
    """The hosts of a file with lines such as ``a slots=4 group=rack1`` or ``a:4``; # starts a comment.

    Raises:
        LaunchError: unreadable, or a line of another form.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"cannot read the hostfile {path}: {error}") from None
    hosts = []
    for number, line in enumerate(lines, 1):
        if words := line.partition("#")[0].split():
            hosts.append(_parse_line(words, f"{path}, line {number}"))
    return _checked(hosts, str(path))


def slurm_hosts(environ: Mapping[str, str]) -> list[Host]:
    """The hosts and tasks of the Slurm allocation that this process runs in; none outside of one.

    Raises:
        LaunchError: Slurm tells something that is not understood.
    """
    names = expand_names(environ.get("SLURM_JOB_NODELIST", ""))
    if not names:
        return []
    text = environ.get("SLURM_TASKS_PER_NODE", "1")
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if not found:
            raise LaunchError(f"SLURM_TASKS_PER_NODE={text} is not understood; give the hosts by --hosts")
        counts += [int(found[1])] * int(found[2] or 1)
    if len(counts) != len(names):
        raise LaunchError(
            f"SLURM_TASKS_PER_NODE={text} does not fit {len(names)} hosts; give them by --hosts"
        )
    return [Host(name, count) for name, count in zip(names, counts, strict=True)]


def expand_names(text: str) -> list[str]:
    """The names in Slurm's short form: n[1-3,07],x5 as n1 n2 n3 n07 x5."""
    names: list[str] = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*", text):
        expanded = [""]
        for plain, ranges in re.findall(r"([^\[]+)|\[([^\]]*)\]", part):
            ends = [plain] if plain else _numbers(ranges)
            expanded = [start + end for start in expanded for end in ends]
        names += expanded
    return names


def parse_topology(text: str) -> tuple[int, int, int]:
    """XxYxZ: X ranks a host, Y near hosts a group, Z groups.

    Raises:
        LaunchError: not three whole numbers.
    """
    parts = text.lower().split("x")
    if len(parts) != 3 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise LaunchError(f"--topology {text}: give ranks a host x hosts a group x groups, such as 4x2x1")
    return int(parts[0]), int(parts[1]), int(parts[2])


def arrange(hosts: Sequence[Host], topology: tuple[int, int, int] | None) -> list[Host]:
    """The hosts in the order of their ranks: those of a group one after the other, in the order given.

    With a topology, hosts without a group's name are near in the order given: the first Y, the next Y, ...

    Raises:
        LaunchError: the hosts are not as the topology says.
    """
    if topology is None:
        order = list(dict.fromkeys(host.group for host in hosts))
        return sorted(hosts, key=lambda host: order.index(host.group))
    ranks, near, num_groups = topology
    shape = "x".join(map(str, topology))
    if len(hosts) != near * num_groups or any(host.num_ranks != ranks for host in hosts):
        have = ", ".join(f"{host.name}:{host.num_ranks}" for host in hosts)
        raise LaunchError(
            f"--topology {shape} is {near * num_groups} hosts of {ranks} ranks, {math.prod(topology)} in all; the hosts are {have}"
        )
    if not any(host.group for host in hosts):
        hosts = [replace(host, group=f"group {index // near}") for index, host in enumerate(hosts)]
    sizes = {group: sum(host.group == group for host in hosts) for group in {host.group for host in hosts}}
    if odd := [group for group, size in sorted(sizes.items()) if size != near]:
        raise LaunchError(f"--topology {shape}: group {odd[0]} has {sizes[odd[0]]} hosts instead of {near}")
    return arrange(hosts, None)


def _parse_host(text: str) -> Host:
    name, colon, number = text.rpartition(":")
    if not colon:
        name, number = text, "1"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or not number.isdecimal() or int(number) < 1:
        raise LaunchError(f"host {text!r}: give a name and its number of ranks, such as node1:4")
    return Host(name, int(number))


def _parse_line(words: Sequence[str], where: str) -> Host:
    try:
        host = _parse_host(words[0])
    except LaunchError as error:
        raise LaunchError(f"{where}: {error}") from None
    for word in words[1:]:
        key, _, value = word.partition("=")
        if key == "slots" and value.isdecimal() and int(value) > 0:
            host = replace(host, num_ranks=int(value))
        elif key == "group" and value:
            host = replace(host, group=value)
        else:
            raise LaunchError(f"{where}: {word!r} is not understood; it may say slots=4 and group=NAME")
    return host


def _checked(hosts: list[Host], where: str) -> list[Host]:
    names = [host.name for host in hosts]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise LaunchError(
            f"{where}: {', '.join(sorted(twice))} is named twice; give the sum of its ranks once"
        )
    if not hosts:
        raise LaunchError(f"{where}: there is no host in it")
    return hosts


def _numbers(ranges: str) -> list[str]:
    numbers = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            raise LaunchError(f"the node list [{ranges}] is not understood; give the hosts by --hosts")
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1)]
    return numbers
