"""How long a plan takes under a simple model of links and memory.

Each host has one network card, which sends and receives at its rate at once. A message takes the card of its sender for its length,
crosses in `latency_s`, and takes the card of its receiver for its length. A free card sends what is ready, the earliest row first.
Messages within a host and local rows take the host's memory for the bytes they read and write, and so do reductions. Nothing else
costs time.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from ddltrain.comm.plans.plan import COUNT, KIND, Kind, Plan
from ddltrain.comm.replay import Rows, gather_rows


@dataclass(frozen=True)
class Cost:
    """What links and memory do.

    Attributes:
        latency_s: from the card of one host to that of another.
        rate_bytes_per_s: of a card, in each direction.
        memory_bytes_per_s: of a host, reads and writes together.
    """

    latency_s: float
    rate_bytes_per_s: float
    memory_bytes_per_s: float
    element_bytes: int = 4


def simulate(plan: Plan, cost: Cost) -> float:
    """The seconds until all ranks are done. Builds the tables of all ranks."""
    rows = gather_rows(plan)
    return _Simulation(rows, cost).run() if len(rows.table) else 0.0


def floor_s(plan: Plan, cost: Cost) -> float:
    """The least seconds for any all-reduce: a host sends 2 (H - 1) / H of the data; its memory reads and writes that of all its ranks."""
    data_bytes, hosts = plan.count * cost.element_bytes, len(plan.topology.hosts)
    local = max(map(len, plan.topology.hosts))
    memory_s = 2 * local * data_bytes / cost.memory_bytes_per_s if local > 1 else 0.0
    return max(2 * (hosts - 1) / hosts * data_bytes / cost.rate_bytes_per_s, memory_s)


class _Simulation:
    """Events in order of time. A row waits for its stage, for the row before it on its segment and, if it receives, for the message."""

    def __init__(self, rows: Rows, cost: Cost) -> None:
        self._cost, table = cost, rows.table
        topology = rows.plan.topology
        self._kind, self._count, self._rank = (
            table[:, KIND].tolist(),
            table[:, COUNT].tolist(),
            rows.rank.tolist(),
        )
        self._partner, self._stage = rows.partner.tolist(), rows.stage.tolist()
        self._host = [topology.host_of(rank) for rank in range(topology.world_size)]
        self._local_sizes = [len(host) for host in topology.hosts]
        self._next = np.full(len(table), -1)
        follows = np.flatnonzero(rows.before >= 0)
        self._next[rows.before[follows]] = follows
        receives = np.isin(table[:, KIND], (Kind.RECV, Kind.RECV_REDUCE))
        self._waits = (1 + (rows.before >= 0) + receives).tolist()
        first = np.flatnonzero(np.diff(rows.stage, prepend=-1))
        self._stages = [
            range(*ends) for ends in zip(first.tolist(), [*first[1:].tolist(), len(table)], strict=True)
        ]
        rank_of_stage = [self._rank[stage[0]] for stage in self._stages]
        self._goes_on = [
            rank == later for rank, later in zip(rank_of_stage, [*rank_of_stage[1:], -1], strict=True)
        ]
        self._undone = [len(stage) for stage in self._stages]
        self._events: list[tuple[float, int, str, int]] = []
        self._card_free = [True] * len(topology.hosts)
        self._to_send: list[list[int]] = [[] for _ in topology.hosts]
        self._receiver_free_s = [0.0] * len(topology.hosts)
        self._memory_free_s = [0.0] * len(topology.hosts)
        self._at_barrier: list[list[int]] = [[] for _ in topology.hosts]

    def run(self) -> float:
        for stage in range(len(self._stages)):
            if stage == 0 or not self._goes_on[stage - 1]:
                self._begin(0.0, stage)
        handlers = {
            "sent": self._sent,
            "arrived": self._arrived,
            "received": self._release,
            "done": self._done,
        }
        now = 0.0
        while self._events:
            now, _, event, row = heapq.heappop(self._events)
            handlers[event](now, row)
        return now

    def _later(self, time: float, event: str, row: int) -> None:
        heapq.heappush(self._events, (time, row, event, row))

    def _begin(self, now: float, stage: int) -> None:
        for row in self._stages[stage]:
            self._release(now, row)

    def _release(self, now: float, row: int) -> None:
        """One thing less to wait for."""
        self._waits[row] -= 1
        if self._waits[row] > 0:
            return
        host, kind = self._host[self._rank[row]], self._kind[row]
        if kind == Kind.LOCAL_BARRIER:
            self._at_barrier[host].append(row)
            if len(self._at_barrier[host]) == self._local_sizes[host]:
                waiting, self._at_barrier[host] = self._at_barrier[host], []
                for each in waiting:
                    self._later(now, "done", each)
        elif kind == Kind.SEND and self._host[self._rank[self._partner[row]]] != host:
            heapq.heappush(self._to_send[host], row)
            self._send(now, host)
        else:
            self._use_memory(now, host, row)

    def _use_memory(self, now: float, host: int, row: int) -> None:
        local = self._local_sizes[host]
        touched = {
            Kind.SEND: 2,
            Kind.RECV: 0,
            Kind.RECV_REDUCE: 3,
            Kind.LOCAL_REDUCE: local + 1,
            Kind.LOCAL_SPREAD: local,
            Kind.LOCAL_REDUCE_SPREAD: 2 * local,
        }[Kind(self._kind[row])]
        duration_s = touched * self._count[row] * self._cost.element_bytes / self._cost.memory_bytes_per_s
        end = now
        if duration_s > 0:
            end = self._memory_free_s[host] = max(now, self._memory_free_s[host]) + duration_s
        if self._kind[row] == Kind.SEND:
            self._later(end, "received", self._partner[row])
        self._later(end, "done", row)

    def _wire_s(self, row: int) -> float:
        count: int = self._count[row]
        return count * self._cost.element_bytes / self._cost.rate_bytes_per_s

    def _send(self, now: float, host: int) -> None:
        if self._card_free[host] and self._to_send[host]:
            row = heapq.heappop(self._to_send[host])
            self._card_free[host] = False
            self._later(now + self._wire_s(row), "sent", row)
            self._later(now + self._cost.latency_s, "arrived", self._partner[row])

    def _sent(self, now: float, row: int) -> None:
        host = self._host[self._rank[row]]
        self._card_free[host] = True
        self._done(now, row)
        self._send(now, host)

    def _arrived(self, now: float, row: int) -> None:
        """The first byte is here; the card takes messages in the order in which they come."""
        host = self._host[self._rank[row]]
        end = self._receiver_free_s[host] = max(now, self._receiver_free_s[host]) + self._wire_s(row)
        self._later(end, "received", row)

    def _done(self, now: float, row: int) -> None:
        stage = self._stage[row]
        self._undone[stage] -= 1
        if self._undone[stage] == 0 and self._goes_on[stage]:
            self._begin(now, stage + 1)
        if self._next[row] >= 0:
            self._release(now, int(self._next[row]))
