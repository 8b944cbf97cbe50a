"""Pictures of plans: who sends what to whom, lane by lane and round by round, as SVG.

A lane is one strip. On its left the ranks stand as a tree, or in a circle; on its right time runs from left to right, one column a
round, and each rank has a line from which its messages leave and on which those of others arrive.
"""

from collections.abc import Sequence
from html import escape

import numpy as np

from ddltrain.comm.draw_graph import (
    BAND,
    FAINT,
    GRAPH_SIZE,
    INK,
    Arrow,
    arrow_line,
    draw_graph,
    part_colors,
    text,
)
from ddltrain.comm.plans.plan import COUNT, KIND, LANE, OFFSET, PEER, Kind, Plan
from ddltrain.comm.replay import Rows, gather_rows, play, rounds_of

LINE_HEIGHT = 24
COLUMN_WIDTH = 108
LEFT_WIDTH = 300
LABEL_WIDTH = 110
HEADER_HEIGHT = 106
STRIP_GAP = 50


def draw(plan: Plan) -> str:
    """The picture of a plan, clearest if that is not cut into many segments. Builds the tables of all ranks."""
    rows = gather_rows(plan)
    arrows = find_arrows(rows)
    lanes = sorted({arrow.lane for arrow in arrows}) or [0]
    strip = max(plan.world_size * LINE_HEIGHT + 20, GRAPH_SIZE if arrows else 0)
    width = max(LEFT_WIDTH + LABEL_WIDTH + max(plan.num_rounds, 1) * COLUMN_WIDTH + 60, 1060)
    height = HEADER_HEIGHT + len(lanes) * (strip + STRIP_GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="{INK}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *_header(plan, rows),
    ]
    for index, lane in enumerate(lanes):
        top = HEADER_HEIGHT + index * (strip + STRIP_GAP)
        chosen = [arrow for arrow in arrows if arrow.lane == lane]
        parts.append(text(20, top + 8, _lane_title(rows, lane), bold=True))
        parts += draw_graph(plan, chosen, top + 24, strip)
        parts += _timeline(rows, chosen, top + 24)
        if index == 0:
            parts += _windows(rows, top + 24)
    return "\n".join([*parts, "</svg>\n"])


def find_arrows(rows: Rows) -> list[Arrow]:
    """The messages of a plan, those of equal lane, round, ends and kind taken together; in order of rounds."""
    rounds = rounds_of(rows, list(play(rows)))
    found: dict[tuple[int, int, int, int, bool], tuple[int, int]] = {}
    for row in np.flatnonzero(rows.table[:, KIND] == Kind.SEND).tolist():
        lane, peer, offset, count = (int(rows.table[row, column]) for column in (LANE, PEER, OFFSET, COUNT))
        reduces = bool(rows.table[rows.partner[row], KIND] == Kind.RECV_REDUCE)
        key = (lane, int(rounds[row]), int(rows.rank[row]), peer, reduces)
        first, total = found.get(key, (offset, 0))
        found[key] = (min(first, offset), total + count)
    return [Arrow(*key, *found[key]) for key in sorted(found)]


def _header(plan: Plan, rows: Rows) -> list[str]:
    sent = max(map(plan.sent_elements, range(plan.world_size)))
    share = f"{sent / plan.count:.3g}" if plan.count else "0"
    facts = f"{plan.num_rounds} rounds; a rank sends {share} times the data at most"
    if np.any(rows.table[:, KIND] == Kind.LOCAL_BARRIER):
        facts += "; squares: ranks of a host sum up, and spread, in shared memory"
    return [
        f'<text x="20" y="30" font-size="18" font-weight="bold">{escape(plan.algorithm)}: {escape(plan.description)}</text>',
        text(20, 52, facts),
        arrow_line((20, 70), (60, 70), INK, 2, dashed=False),
        text(68, 74, "added by the receiver"),
        arrow_line((220, 70), (260, 70), INK, 2, dashed=True),
        text(268, 74, "copied; a color is a part of the data, a percentage the largest message of the round"),
    ]


def _lane_title(rows: Rows, lane: int) -> str:
    chosen = rows.table[(rows.table[:, LANE] == lane) & (rows.table[:, KIND] != Kind.LOCAL_BARRIER)]
    if not len(chosen):
        return "nothing to do"
    begin, end = chosen[:, OFFSET].min(), (chosen[:, OFFSET] + chosen[:, COUNT]).max()
    return f"lane {lane}: elements {begin} to {end - 1} of {rows.plan.count}"


def _lines(plan: Plan, top: float) -> dict[int, float]:
    """The height of each rank's line."""
    return {rank: top + 24 + LINE_HEIGHT * index for index, rank in enumerate(plan.topology.order)}


def _timeline(rows: Rows, arrows: Sequence[Arrow], top: float) -> list[str]:
    plan, left = rows.plan, LEFT_WIDTH + LABEL_WIDTH
    right = left + max(plan.num_rounds, 1) * COLUMN_WIDTH
    lines = _lines(plan, top)
    parts = []
    if plan.world_size > len(plan.topology.hosts):
        for index, host in enumerate(plan.topology.hosts):
            begin, end = lines[host[0]] - LINE_HEIGHT / 2 + 2, lines[host[-1]] + LINE_HEIGHT / 2 - 2
            parts.append(
                f'<rect x="{LEFT_WIDTH}" y="{begin}" width="{right + 30 - LEFT_WIDTH}" height="{end - begin}" fill="{BAND}"/>'
            )
            parts.append(text(LEFT_WIDTH + 6, lines[host[0]] + 4, f"host {index}", color=FAINT))
    for rank, y in lines.items():
        parts.append(text(left - 46, y + 4, f"rank {rank}"))
        parts.append(
            f'<line x1="{left}" y1="{y}" x2="{right}" y2="{y}" stroke="{FAINT}" stroke-width="0.5"/>'
        )
    for number in range(1, plan.num_rounds + 1):
        x = left + (number - 1) * COLUMN_WIDTH
        sizes = [arrow.count for arrow in arrows if arrow.round == number]
        share = f" · {100 * max(sizes) / plan.count:.2g} %" if sizes else ""
        parts.append(text(x + COLUMN_WIDTH / 2, top + 8, f"round {number}{share}", middle=True))
        parts.append(
            f'<line x1="{x}" y1="{top + 14}" x2="{x}" y2="{max(lines.values()) + 12}" stroke="{FAINT}" stroke-width="0.5" '
            'stroke-dasharray="2 3"/>'
        )
    largest = max((arrow.count for arrow in arrows), default=1)
    colors = part_colors(plan, arrows)
    for arrow in arrows:
        x = left + (arrow.round - 1) * COLUMN_WIDTH
        ends = (x + 6, lines[arrow.source]), (x + COLUMN_WIDTH - 6, lines[arrow.destination])
        width = 1 + 1.5 * arrow.count / largest
        parts.append(arrow_line(*ends, colors[arrow.offset], width, dashed=not arrow.reduces))
    return parts


def _windows(rows: Rows, top: float) -> list[str]:
    """Who reads the windows of its host before the first round, and who writes them behind the last."""
    plan, lines = rows.plan, _lines(rows.plan, top)
    left = LEFT_WIDTH + LABEL_WIDTH
    right = left + max(plan.num_rounds, 1) * COLUMN_WIDTH
    places = {
        Kind.LOCAL_REDUCE: left,
        Kind.LOCAL_SPREAD: right,
        Kind.LOCAL_REDUCE_SPREAD: (left + right) / 2,
    }
    parts = []
    for kind, x in places.items():
        for rank in np.unique(rows.rank[rows.table[:, KIND] == kind]).tolist():
            host = plan.topology.hosts[plan.topology.host_of(rank)]
            first = rows.table[(rows.rank == rank) & (rows.table[:, KIND] == kind), OFFSET].min()
            color = f"hsl({360 * first / plan.count:.0f} 65% 42%)"
            at = x + 7 * (host.index(rank) - (len(host) - 1) / 2)
            parts.append(
                f'<line x1="{at}" y1="{lines[host[0]]}" x2="{at}" y2="{lines[host[-1]]}" stroke="{color}" stroke-width="2"/>'
            )
            parts.append(f'<rect x="{at - 4}" y="{lines[rank] - 4}" width="8" height="8" fill="{color}"/>')
    return parts
