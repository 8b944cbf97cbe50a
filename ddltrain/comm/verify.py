"""Proves that a plan is an all-reduce, by playing it on symbols in place of numbers.

Each rank starts with one symbol of its own per element, and a reduction makes a new symbol of two. A symbol knows whose inputs it holds
(so a lost or a doubled summand is found) and from which two it was made, in no order (so equal symbols mean equal bits: a + b is b + a,
but (a + b) + c is not a + (b + c)). Elements between two neighbouring ends of ranges are alike and are followed as one.
"""

import numpy as np

from ddltrain.comm.plans.plan import COUNT, KIND, LANE, OFFSET, PEER, PHASE, Ints, Kind, Plan
from ddltrain.comm.replay import PlanError, Rows, gather_rows, play, rounds_of


def verify(plan: Plan) -> None:
    """Check everything that a plan promises. Builds the tables of all ranks.

    Raises:
        PlanError: in words, the first promise found broken.
    """
    rows = gather_rows(plan)
    _check_rows(rows)
    _check_segments(rows)
    order = list(play(rows))
    _check_sums(rows, order)
    _check_windows(rows)
    _check_formulas(rows, order)
    if plan.algorithm == "multicolor":
        _check_interiors(rows)
    if plan.algorithm == "multiring":
        _check_rings(rows)


def _check_rows(rows: Rows) -> None:
    """Values in range; phases in order; barriers alone in their phase."""
    table, count = rows.table, rows.plan.count
    barrier = table[:, KIND] == Kind.LOCAL_BARRIER
    begin, length = table[:, OFFSET], table[:, COUNT]
    empty = ~barrier & ((begin < 0) | (length < 1) | (begin + length > count))
    lane = (table[:, LANE] < 0) | (table[:, LANE] >= rows.plan.lanes)
    kind = (table[:, KIND] < 0) | (table[:, KIND] > max(Kind))
    back = (np.diff(table[:, PHASE], prepend=0) < 0) & (np.diff(rows.rank, prepend=-1) == 0)
    for wrong, text in ((kind, "kind"), (empty, "range"), (lane, "lane"), (back, "phase order")):
        if wrong.any():
            row = int(np.argmax(wrong))
            raise PlanError(f"wrong {text} in {table[row].tolist()} of rank {rows.rank[row]}")
    crowded = barrier & (np.bincount(rows.stage)[rows.stage] > 1)
    if crowded.any():
        raise PlanError(f"not alone in its phase: {rows.where(int(np.argmax(crowded)))}")


def _check_segments(rows: Rows) -> None:
    """Any two ranges in a phase of a rank are equal or disjoint."""
    chosen = np.flatnonzero(rows.table[:, KIND] != Kind.LOCAL_BARRIER)
    begin, length = rows.table[chosen, OFFSET], rows.table[chosen, COUNT]
    order = np.lexsort((length, begin, rows.stage[chosen]))
    stage, begin, length = rows.stage[chosen][order], begin[order], length[order]
    equal = (begin[1:] == begin[:-1]) & (length[1:] == length[:-1])
    overlap = (stage[1:] == stage[:-1]) & ~equal & (begin[1:] < begin[:-1] + length[:-1])
    if overlap.any():
        row = int(chosen[order][1:][np.argmax(overlap)])
        raise PlanError(f"overlaps another range of its phase: {rows.where(row)}")


class _Symbols:
    """Sums as numbers. Number r is the input of rank r; the others stand for pairs of sums."""

    def __init__(self, world_size: int) -> None:
        self.inputs = [1 << rank for rank in range(world_size)]  # bitmask of the ranks in a sum
        self._pairs: dict[tuple[int, int], int] = {}

    def add(self, left: int, right: int) -> int:
        if self.inputs[left] & self.inputs[right]:
            raise PlanError("an input is added twice")
        pair = (min(left, right), max(left, right))
        if pair not in self._pairs:
            self._pairs[pair] = len(self.inputs)
            self.inputs.append(self.inputs[left] | self.inputs[right])
        return self._pairs[pair]

    def add_all(self, left: Ints, right: Ints) -> Ints:
        return np.array([self.add(*pair) for pair in zip(left.tolist(), right.tolist(), strict=True)])


def _check_sums(rows: Rows, order: list[int]) -> None:
    """On every rank every element ends as the sum of all inputs, each once, added up in the same way."""
    plan = rows.plan
    ends, low, high = _pieces(rows)
    symbols = _Symbols(plan.world_size)
    held = np.repeat(np.arange(plan.world_size)[:, None], len(ends) - 1, axis=1)
    on_the_way: dict[int, Ints] = {}
    kinds, ranks = rows.table[:, KIND].tolist(), rows.rank.tolist()
    local_ranks = [list(plan.topology.hosts[plan.topology.host_of(rank)]) for rank in range(plan.world_size)]
    for row in order:
        kind, rank, piece = kinds[row], ranks[row], slice(low[row], high[row])
        local = local_ranks[rank]
        try:
            if kind == Kind.SEND:
                on_the_way[int(rows.partner[row])] = held[rank, piece].copy()
            elif kind == Kind.RECV:
                held[rank, piece] = on_the_way.pop(row)
            elif kind == Kind.RECV_REDUCE:
                held[rank, piece] = symbols.add_all(held[rank, piece], on_the_way.pop(row))
            elif kind in (Kind.LOCAL_REDUCE, Kind.LOCAL_REDUCE_SPREAD):
                total = held[local[0], piece]
                for other in local[1:]:
                    total = symbols.add_all(total, held[other, piece])
                held[rank if kind == Kind.LOCAL_REDUCE else local, piece] = total
            elif kind == Kind.LOCAL_SPREAD:
                held[local, piece] = held[rank, piece].copy()
        except PlanError as error:
            raise PlanError(f"{error}: {rows.where(row)}") from None
    everyone = (1 << plan.world_size) - 1
    for part, column in enumerate(held.T.tolist()):
        for rank, symbol in enumerate(column):
            missing = everyone & ~symbols.inputs[symbol]
            text = f"elements {ends[part]} to {ends[part + 1] - 1} of rank {rank}"
            if missing:
                raise PlanError(f"{text} lack the input of rank {missing.bit_length() - 1}")
            if symbol != column[0]:
                raise PlanError(f"{text} are added up in another order than on rank 0")


def _pieces(rows: Rows) -> tuple[Ints, Ints, Ints]:
    """All ends of ranges, and each row's range as indices into them."""
    begin, end = rows.table[:, OFFSET], rows.table[:, OFFSET] + rows.table[:, COUNT]
    ends = np.unique(np.concatenate([[0, rows.plan.count], begin, end]))
    return ends, np.searchsorted(ends, begin), np.searchsorted(ends, end)


def _check_windows(rows: Rows) -> None:
    """Between two barriers, no rank touches in a window of its host what another one writes there."""
    topology = rows.plan.topology
    ends, low, high = _pieces(rows)
    shape = (rows.plan.world_size, len(ends) - 1)
    is_barrier = rows.table[:, KIND] == Kind.LOCAL_BARRIER
    for host in topology.hosts:
        chosen = np.flatnonzero(np.isin(rows.rank, host))
        if len(host) == 1 or not is_barrier[chosen].any():
            continue
        for period in _periods(rows, chosen, is_barrier):
            user, written = np.full(shape, -1), np.zeros(shape, dtype=bool)
            for row in period:
                piece, rank = slice(low[row], high[row]), int(rows.rank[row])
                for windows, writes in _touched(Kind(rows.table[row, KIND]), rank, list(host)):
                    users = user[windows, piece]
                    strange = (users != -1) & (users != rank)
                    if (strange & (written[windows, piece] | writes)).any():
                        raise PlanError(
                            f"another rank of the host may use these elements meanwhile: {rows.where(row)}"
                        )
                    user[windows, piece] = np.where(strange, -2, rank)
                    written[windows, piece] |= writes


def _periods(rows: Rows, chosen: Ints, is_barrier: Ints) -> list[Ints]:
    """The chosen rows but barriers, split by how many barriers of its rank stand before a row."""
    passed = np.cumsum(is_barrier)
    first = np.searchsorted(rows.rank, rows.rank[chosen])
    period = passed[chosen] - passed[first] + is_barrier[first]
    work = ~is_barrier[chosen]
    return [chosen[work & (period == number)] for number in np.unique(period[work])]


def _touched(kind: Kind, rank: int, host: list[int]) -> list[tuple[list[int], bool]]:
    """Whose windows a row touches, and if it writes."""
    if kind == Kind.LOCAL_REDUCE:
        return [(host, False), ([rank], True)]
    if kind == Kind.LOCAL_SPREAD:
        return [([rank], False), (host, True)]
    if kind == Kind.LOCAL_REDUCE_SPREAD:
        return [(host, True)]
    return [([rank], kind != Kind.SEND)]


def _check_formulas(rows: Rows, order: list[int]) -> None:
    """Elements sent, and the longest path of messages, are what the plan says."""
    plan, table = rows.plan, rows.table
    is_send = table[:, KIND] == Kind.SEND
    sent = np.bincount(rows.rank[is_send], table[is_send, COUNT], minlength=plan.world_size)
    for rank in range(plan.world_size):
        if sent[rank] != plan.sent_elements(rank):
            raise PlanError(
                f"rank {rank} sends {sent[rank]:.0f} elements, by formula {plan.sent_elements(rank)}"
            )
    rounds = int(rounds_of(rows, order)[is_send].max(initial=0))
    if rounds != plan.num_rounds:
        raise PlanError(f"{rounds} rounds, by formula {plan.num_rounds}")


def _check_interiors(rows: Rows) -> None:
    """A rank sums up for others in one color at most."""
    inner = rows.table[:, KIND] == Kind.RECV_REDUCE
    pairs = np.unique(np.stack([rows.rank[inner], rows.table[inner, LANE]], axis=1), axis=0)
    shared = np.flatnonzero(np.bincount(pairs[:, 0], minlength=rows.plan.world_size) > 1)
    if len(shared):
        raise PlanError(f"rank {shared[0]} is an interior place of several colors")


def _check_rings(rows: Rows) -> None:
    """Each lane is one circle through all ranks, and no two go from one host to another in the same direction."""
    plan = rows.plan
    is_send = rows.table[:, KIND] == Kind.SEND
    links = np.stack([rows.table[is_send, LANE], rows.rank[is_send], rows.table[is_send, PEER]], axis=1)
    used: set[tuple[int, int]] = set()
    for lane in range(plan.lanes):
        pairs = np.unique(links[links[:, 0] == lane][:, 1:], axis=0).tolist()
        following = dict(pairs)
        rank, seen = 0, {0}
        while following.get(rank, 0) not in seen:
            rank = following[rank]
            seen.add(rank)
        if pairs and (len(pairs) != plan.world_size or len(seen) != plan.world_size or following[rank] != 0):
            raise PlanError(f"lane {lane} is no circle through all ranks")
        several = len(plan.topology.hosts) > 1
        ends = [tuple(map(plan.topology.host_of, pair)) if several else tuple(pair) for pair in pairs]
        new = {(source, destination) for source, destination in ends if source != destination}
        if new & used:
            raise PlanError(f"lane {lane} shares the link {min(new & used)} with another lane")
        used |= new
