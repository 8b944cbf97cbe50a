"""What ranks tell our launcher, line by line through their standard error, so that it also works from other hosts.

    ::ddltrain:: {"kind": "started"}                 all ranks have started, and catch signals
    ::ddltrain:: {"kind": "status", "status": 75}    the job ended in order, on all ranks, with this status
    ::ddltrain:: {"kind": "failed", ...}             a rank fails, and why
    ::ddltrain:: {"kind": "waits", ...}              a rank has waited for others for long
    ::ddltrain:: {"kind": "lost", "host": "b"}       what mpiexec runs on a host has ended, and not in order

The launcher keeps these lines to itself, and makes one sentence of them when the job has ended.
"""

import json
import re
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Set for the ranks that our launcher starts: the command that the user typed.
LAUNCHER_VARIABLE = "DDL_LAUNCHER"

_MARK = "::ddltrain:: "
_LINE = re.compile(re.escape(_MARK) + r"(\{.*\})\s*$")
# So says Open MPI of a host whose daemon it has lost, sooner than the agent can.
_LOST_HOST = re.compile(r"\s*Remote daemon:.* on node (\S+)\s*$")
# And so of a rank that has closed its connections; this rank ends, too, and may be heard of sooner.
_PEER_HOST = re.compile(r"\s*Peer host:\s+(\S+)\s*$")
_RANKS = re.compile(r"\brank (\d+)")

# How much a rank's word explains: others may fail only because it did, and some are ended by mpiexec.
_REASON, _CONSEQUENCE, _SILENT_END, _TOLD_TO_END = range(4)


def tell(environ: Mapping[str, str], kind: str, **entries: Any) -> None:
    """Tell our launcher; nothing happens without one."""
    if LAUNCHER_VARIABLE in environ:
        print(f"{_MARK}{json.dumps({'kind': kind, **entries})}", file=sys.stderr, flush=True)


def tell_failure(
    environ: Mapping[str, str],
    rank: int,
    world_size: int,
    host: str,
    text: str,
    is_consequence: bool,
    is_users: bool,
) -> None:
    """A rank fails.

    Args:
        is_consequence: perhaps only because another one did.
        is_users: only the user can mend it, so that it is of no use to try again.
    """
    weight = _CONSEQUENCE if is_consequence else _REASON
    told = {"rank": rank, "world_size": world_size, "host": host, "text": text, "weight": weight}
    tell(environ, "failed", is_users=is_users, **told)


def reporting_agent(agent: Sequence[str]) -> str:
    """A shell script that does what `agent` does (AGENT HOST COMMAND), and tells when it ends with an error."""
    lost = json.dumps({"kind": "lost", "host": "HOST"}).replace("HOST", "'$host'")
    return (
        f'host=$1\n{shlex.join(agent)} "$@"\nstatus=$?\n'
        f"[ $status = 0 ] || echo '{_MARK}{lost}' >&2\nexit $status\n"
    )


def tell_end(environ: Mapping[str, str], rank: int, world_size: int, host: str, status: int) -> None:
    """A rank's process has ended with `status`, negative for a signal, as its guard saw."""
    if status < 0:
        number = signal.Signals(-status)
        text = f"killed by signal {number.value} ({number.name})"
        weight = _TOLD_TO_END if number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1) else _REASON
    else:
        text, weight = f"ended with status {status}", _SILENT_END
    told = {"rank": rank, "world_size": world_size, "host": host, "text": text, "weight": weight}
    tell(environ, "failed", is_users=False, **told)


@dataclass(frozen=True)
class Cause:
    """Why a job ended.

    Attributes:
        rank: -1: all of the host.
        is_users: only the user can mend it.
    """

    rank: int
    world_size: int
    host: str
    text: str
    is_users: bool = False

    def __str__(self) -> str:
        rank = f"rank {self.rank}/{self.world_size} on " if self.rank >= 0 else ""
        return f"{rank}host {self.host}: {self.text}"


@dataclass
class Report:
    """What a job's ranks have told so far.

    Attributes:
        status: of a job that ended in order.
        hosts: of each rank that is known.
    """

    has_started: bool = False
    status: int | None = None
    hosts: dict[int, str] = field(default_factory=dict)
    _failures: list[dict[str, Any]] = field(default_factory=list)
    _waits: dict[int, set[int]] = field(default_factory=dict)
    _stalls: list[dict[str, Any]] = field(default_factory=list)
    _lost_host: str = ""
    _peer_host: str = ""

    def take(self, line: str) -> bool:
        """Whether the line was for the launcher; then it is noted."""
        found = _LINE.search(line)
        if not found:
            if lost := _LOST_HOST.match(line):
                self._lost_host = self._lost_host or lost[1]
            if peer := _PEER_HOST.match(line):
                self._peer_host = self._peer_host or peer[1]
            return False
        entries = json.loads(found[1])
        kind = entries["kind"]
        if kind == "started":
            self.has_started = True
            self.hosts = dict(enumerate(entries["hosts"]))
        elif kind == "status":
            self.status = entries["status"]
        elif kind == "lost":
            self._lost_host = self._lost_host or entries["host"]
        else:
            if kind == "waits" or entries["weight"] == _CONSEQUENCE:
                self._waits[entries["rank"]] = _ranks_waited_for(entries["text"])
            (self._failures if kind == "failed" else self._stalls).append(entries)
        return True

    def take_stalls(self) -> list[str]:
        """What ranks have told about waiting since the last call, in few sentences."""
        stalls, self._stalls = self._stalls, []
        if not stalls:
            return []
        waiting = sorted({stall["rank"] for stall in stalls})
        longest = max(stalls, key=lambda stall: float(stall["waited_s"]))
        lines = [
            f"no progress for {longest['waited_s']:.0f} s: {len(waiting)} rank(s) wait ({_listed(waiting)}); "
            f"rank {longest['rank']}: {longest['text']}"
        ]
        if (silent := self._silent()) is not None:
            lines.append(
                f"rank {silent} on host {self.hosts.get(silent, 'unknown')} is waited for and does not come"
            )
        return lines

    @property
    def has_failed(self) -> bool:
        """Whether a rank has told that it fails."""
        return any(failure["weight"] <= _SILENT_END for failure in self._failures)

    def cause(self) -> Cause | None:
        """The reason that explains the most, the first one of several; None where no rank told one."""
        if self._lost_host and not any(failure["weight"] == _REASON for failure in self._failures):
            rank = next((rank for rank, host in self.hosts.items() if host == self._lost_host), -1)
            return Cause(
                rank, max(1, len(self.hosts)), self._lost_host, "mpiexec has lost all that it ran there"
            )
        if not self._failures:
            return None
        # Of silent ends, that on the host which MPI has missed first is the reason.
        missed = self._peer_host if self._peer_host in self.hosts.values() else ""
        first = min(
            self._failures,
            key=lambda one: (one["weight"], one["weight"] == _SILENT_END and one["host"] != missed),
        )
        if first["weight"] == _SILENT_END and missed and first["host"] != missed:
            rank = next(rank for rank, host in self.hosts.items() if host == missed)
            what = f"has left (rank {first['rank']} says: {first['text']})"
            return Cause(rank, first["world_size"], missed, what)
        if first["weight"] == _CONSEQUENCE and (silent := self._silent()) is not None:
            host = self.hosts.get(silent, "unknown")
            what = f"does not come (rank {first['rank']} says: {first['text']})"
            return Cause(silent, first["world_size"], host, what)
        return Cause(first["rank"], first["world_size"], first["host"], first["text"], first["is_users"])

    def _silent(self) -> int | None:
        """The rank that others wait for and that says nothing itself."""
        waited_for = set().union(*self._waits.values()) - self._waits.keys()
        # MPI's own operations do not tell for whom they wait.
        return min(waited_for or self.hosts.keys() - self._waits.keys(), default=None)


def _ranks_waited_for(text: str) -> set[int]:
    _, waits, behind = text.rpartition("waits for")
    return set(map(int, _RANKS.findall(behind))) if waits else set()


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
