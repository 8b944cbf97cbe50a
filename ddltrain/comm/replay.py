"""Plays a plan of all ranks in memory, in the most reluctant way that its chains allow.

Every send blocks until its receive is posted, messages from one rank to another are taken strictly one by one, no send gets further ahead
than `Plan.rows_ahead`, and the next phase waits for the last row of the one before. All these are "after" relations between rows, so they
form a graph: the plan locks up in some schedule just when the graph has a cycle, and any order along the graph gives the same result.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ddltrain.comm.plans.plan import COUNT, KIND, OFFSET, PEER, PHASE, TAG, Ints, Kind, Plan

TAG_LIMIT = 1 << 20


class PlanError(Exception):
    """A plan is wrong: a defect of its planner."""


@dataclass(frozen=True)
class Rows:
    """The rows of all ranks under each other, and how they hang together. Rows are numbered through.

    Attributes:
        table: int64 [num_rows, 7].
        rank: of each row.
        before: the row before in the chain of a segment, or -1.
        partner: for a send its receive and the other way round, else -1.
        stage: the row's phase, numbered through over all ranks.
    """

    plan: Plan
    table: Ints
    rank: Ints
    before: Ints
    partner: Ints
    stage: Ints

    def where(self, row: int) -> str:
        """A row in words."""
        kind, phase, lane, tag, peer, offset, count = self.table[row].tolist()
        end = f" peer {peer} tag {tag}" if kind <= Kind.RECV_REDUCE else ""
        return f"rank {self.rank[row]} phase {phase} lane {lane} {Kind(kind).name} [{offset}, {offset + count}){end}"


def gather_rows(plan: Plan) -> Rows:
    """Build and join the tables of all ranks.

    Raises:
        PlanError: sends and receives do not match.
    """
    tables = [plan.ops_of(rank) for rank in range(plan.world_size)]
    table = np.concatenate(tables)
    rank = np.repeat(np.arange(plan.world_size), [len(table) for table in tables])
    changes = (np.diff(rank) != 0) | (np.diff(table[:, PHASE]) != 0)
    stage = np.append(0, np.cumsum(changes))[: len(table)]
    return Rows(plan, table, rank, _previous(stage, table[:, OFFSET]), _partners(table, rank), stage)


def _previous(*keys: Ints) -> Ints:
    """For each row the last one above with equal keys, or -1."""
    order = np.lexsort(keys[::-1])
    same = np.all([key[order][1:] == key[order][:-1] for key in keys], axis=0)
    previous = np.full(len(order), -1)
    previous[order[1:][same]] = order[:-1][same]
    return previous


def _partners(table: Ints, rank: Ints) -> Ints:
    """Match sends and receives by source, destination and tag."""
    is_send = table[:, KIND] == Kind.SEND
    is_receive = np.isin(table[:, KIND], (Kind.RECV, Kind.RECV_REDUCE))
    peer, tag = table[:, PEER], table[:, TAG]
    moves = is_send | is_receive
    bad = moves & (
        (peer < 0) | (peer > rank.max(initial=0)) | (peer == rank) | (tag < 0) | (tag >= TAG_LIMIT)
    )
    if bad.any():
        row = int(np.argmax(bad))
        raise PlanError(f"rank {rank[row]} has no such peer {peer[row]} or tag {tag[row]}")
    source, destination = np.where(is_send, rank, peer), np.where(is_send, peer, rank)
    ends = []
    for chosen in (is_send, is_receive):
        index = np.flatnonzero(chosen)
        index = index[np.lexsort((tag[index], destination[index], source[index]))]
        keys = np.stack([source[index], destination[index], tag[index]], axis=1)
        twice = np.all(keys[1:] == keys[:-1], axis=1)
        if twice.any():
            raise PlanError(f"(source, destination, tag) = {keys[1:][twice][0].tolist()} is used twice")
        ends.append((index, keys))
    (sends, send_keys), (receives, receive_keys) = ends
    lonely = set(map(tuple, send_keys.tolist())) ^ set(map(tuple, receive_keys.tolist()))
    if lonely:
        raise PlanError(f"no partner for the message (source, destination, tag) = {min(lonely)}")
    differ = np.any(table[sends][:, (OFFSET, COUNT)] != table[receives][:, (OFFSET, COUNT)], axis=1)
    if differ.any():
        key = send_keys[differ][0].tolist()
        raise PlanError(
            f"the two ends of the message (source, destination, tag) = {key} have different ranges"
        )
    partner = np.full(len(table), -1)
    partner[sends], partner[receives] = receives, sends
    return partner


def play(rows: Rows) -> Iterator[int]:
    """All rows in an order in which they can be finished, a send always before its receive.

    Raises:
        PlanError: ranks wait for each other in a circle.
    """
    sources, targets = _waits(rows)
    num_nodes = int(max(sources.max(initial=-1), targets.max(initial=-1), len(rows.table) - 1)) + 1
    by_source = np.argsort(sources, kind="stable")
    starts = np.searchsorted(sources[by_source], np.arange(num_nodes + 1)).tolist()
    next_nodes = targets[by_source].tolist()
    waiting = np.bincount(targets, minlength=num_nodes).tolist()
    ready = [node for node in range(num_nodes) if waiting[node] == 0]
    done = np.zeros(num_nodes, dtype=bool)
    while ready:
        node = ready.pop()
        done[node] = True
        if node < len(rows.table):
            yield node
        for later in next_nodes[starts[node] : starts[node + 1]]:
            waiting[later] -= 1
            if waiting[later] == 0:
                ready.append(later)
    stuck = np.flatnonzero(~done[: len(rows.table)])
    if len(stuck):
        raise PlanError(f"deadlock: {len(stuck)} rows never finish, the first is {rows.where(int(stuck[0]))}")


def _waits(rows: Rows) -> tuple[Ints, Ints]:
    """The graph as (before, after) pairs. Nodes: rows finished, then stages begun, then barriers met."""
    table, stage = rows.table, rows.stage
    index = np.arange(len(table))
    begun = len(table) + stage
    is_receive = np.isin(table[:, KIND], (Kind.RECV, Kind.RECV_REDUCE))
    is_message = rows.partner >= 0
    # A message has moved when its send is finished; for that its receive must be posted.
    moved = np.where(is_receive, rows.partner, index)
    # A RECV must wait for its chain before it may overwrite; of a RECV_REDUCE only the reduction waits.
    posted = np.where(table[:, KIND] == Kind.RECV, moved, index)
    one_by_one = _previous(
        rows.rank, np.where(is_message, table[:, PEER], -1 - index), is_receive.astype(np.int64)
    )
    rank_of_stage = rows.rank[np.flatnonzero(np.diff(stage, prepend=-1))]
    goes_on = np.append(rank_of_stage[1:] == rank_of_stage[:-1], False)[stage]
    pairs = [
        (begun, moved),
        (rows.before, posted),
        (rows.before, index),
        (one_by_one, moved),
        (moved[is_receive], index[is_receive]),
        (index[goes_on], begun[goes_on] + 1),
        *_barrier_waits(rows, begun),
    ]
    pairs += _ahead_waits(rows, 1 + max(int(ends.max(initial=-1)) for pair in pairs for ends in pair))
    sources, targets = (np.concatenate(ends) for ends in zip(*pairs, strict=True))
    real = sources >= 0
    return sources[real], targets[real]


def _ahead_waits(rows: Rows, first_node: int) -> list[tuple[Ints, Ints]]:
    """A send waits for all rows of its stage that stand `rows_ahead` or more before it. New nodes: a row and all before it finished."""
    index = np.arange(len(rows.table))
    begin = np.searchsorted(rows.stage, rows.stage)
    until = index - rows.plan.rows_ahead
    held = np.flatnonzero((rows.table[:, KIND] == Kind.SEND) & (until >= begin))
    if not len(held):
        return []
    inner = index[index > begin]
    finished = first_node + index
    return [(finished[inner - 1], finished[inner]), (index, finished), (finished[until[held]], held)]


def _barrier_waits(rows: Rows, begun: Ints) -> list[tuple[Ints, Ints]]:
    """Each rank of a host passes its i-th barrier when all of them have begun their i-th."""
    barriers = np.flatnonzero(rows.table[:, KIND] == Kind.LOCAL_BARRIER)
    hosts = np.array([rows.plan.topology.host_of(rank) for rank in range(rows.plan.world_size)])
    first = np.searchsorted(rows.rank[barriers], rows.rank[barriers])
    keys = np.stack([hosts[rows.rank[barriers]], np.arange(len(barriers)) - first], axis=1)
    meetings, meeting = np.unique(keys, axis=0, return_inverse=True)
    present = np.bincount(meeting.ravel(), minlength=len(meetings))
    for (host, turn), ranks in zip(meetings.tolist(), present.tolist(), strict=True):
        if ranks != len(rows.plan.topology.hosts[host]):
            raise PlanError(f"barrier {turn} of host {host} is missing on some of its ranks")
    node = int(begun.max(initial=-1)) + 1 + meeting.ravel()
    return [(begun[barriers], node), (node, barriers)]


def rounds_of(rows: Rows, order: list[int]) -> Ints:
    """For each message the round it is in: 1 more than those that its content has waited for. int64 [num_rows]."""
    # Rounds behind the data of a row's segment when the row is done; and behind all data of a rank when a stage is.
    behind = [0] * len(rows.table)
    behind_rank = [0] * (int(rows.stage.max(initial=-1)) + 2)
    rounds = np.zeros(len(rows.table), dtype=np.int64)
    stages, before, partner = rows.stage.tolist(), rows.before.tolist(), rows.partner.tolist()
    last_of_rank = np.append(np.diff(rows.rank) != 0, True)[: len(rows.table)]
    closing = {stages[row] for row in np.flatnonzero(last_of_rank)}
    kinds = rows.table[:, KIND].tolist()
    for row in order:
        stage = stages[row]
        inherited = behind[before[row]] if before[row] >= 0 else 0
        behind[row] = max(inherited, behind_rank[stage])
        if kinds[row] == Kind.SEND:
            rounds[row] = behind[row] + 1
        elif partner[row] >= 0:
            rounds[row] = rounds[partner[row]]
            behind[row] = max(behind[row], int(rounds[row]))
        if stage not in closing:
            behind_rank[stage + 1] = max(behind_rank[stage + 1], behind[row], behind_rank[stage])
    return rounds
