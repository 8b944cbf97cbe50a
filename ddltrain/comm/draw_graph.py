"""The left of a plan's picture: its ranks as a tree or in a circle, with an arrow for each link in use. And the strokes of all pictures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ddltrain.comm.plans.plan import Plan

GRAPH_SIZE = 230
NODE_RADIUS = 10
INK, FAINT, BAND = "#1f2933", "#9aa5b1", "#eef2f6"

Point = tuple[float, float]


@dataclass(frozen=True)
class Arrow:
    """All that one rank sends to another in one round of a lane, to be added there, or to be copied."""

    lane: int
    round: int
    source: int
    destination: int
    reduces: bool
    offset: int
    count: int


def draw_graph(plan: Plan, arrows: Sequence[Arrow], top: float, height: float) -> list[str]:
    """The ranks of a lane and the links between them."""
    if not arrows:
        return []
    parents = _parents(arrows)
    size = min(height, GRAPH_SIZE)
    if parents:
        places = _tree_places(parents, 20, top + 16, 260, size - 30)
    else:
        places = _circle_places(plan.topology.order, (20 + 115, top + size / 2 + 8), size / 2 - 14)
    parts = []
    for source, destination in sorted({(arrow.source, arrow.destination) for arrow in arrows}):
        both = any((arrow.destination, arrow.source) == (source, destination) for arrow in arrows)
        parts.append(_link(places[source], places[destination], both=both))
    for rank, (x, y) in places.items():
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{NODE_RADIUS}" fill="{BAND}" stroke="{INK}"/>')
        parts.append(text(x, y + 4, str(rank), middle=True))
    return parts


def _parents(arrows: Sequence[Arrow]) -> dict[int, int | None]:
    """For each rank the one it sends its sums to, None at the root; empty where these make no tree."""
    targets: dict[int, set[int]] = {}
    for arrow in arrows:
        targets.setdefault(arrow.destination, set())
        targets.setdefault(arrow.source, set())
        if arrow.reduces:
            targets[arrow.source].add(arrow.destination)
    roots = [rank for rank, above in targets.items() if not above]
    if len(roots) != 1 or any(len(above) > 1 for above in targets.values()):
        return {}
    parents = {rank: next(iter(above), None) for rank, above in targets.items()}
    # Its links must be used in both directions; a chain that ends elsewhere is no tree of ours.
    down = {(arrow.destination, arrow.source) for arrow in arrows if not arrow.reduces}
    return parents if down == {(rank, above) for rank, above in parents.items() if above is not None} else {}


def _tree_places(
    parents: dict[int, int | None], left: float, top: float, width: float, height: float
) -> dict[int, Point]:
    """Levels from top to bottom, leaves evenly spread, parents above the middle of their children."""
    root = next(rank for rank, above in parents.items() if above is None)
    children = {rank: [below for below, above in parents.items() if above == rank] for rank in parents}
    leaves = sum(not below for below in children.values())
    columns: dict[int, float] = {}
    levels: dict[int, int] = {}

    def place(rank: int, level: int) -> None:
        levels[rank] = level
        for child in children[rank]:
            place(child, level + 1)
        done = sum(not children[placed] for placed in columns)
        below = [columns[child] for child in children[rank]]
        columns[rank] = sum(below) / len(below) if below else (done + 0.5) / leaves

    place(root, 0)
    step = height / max(*levels.values(), 1)
    return {
        rank: (left + width * columns[rank], top + min(step, 70) * levels[rank]) for rank in sorted(parents)
    }


def _circle_places(ranks: Sequence[int], center: Point, radius: float) -> dict[int, Point]:
    angles = [2 * math.pi * index / len(ranks) - math.pi / 2 for index in range(len(ranks))]
    return {
        rank: (center[0] + radius * math.cos(angle), center[1] + radius * math.sin(angle))
        for rank, angle in zip(ranks, angles, strict=True)
    }


def _link(begin: Point, end: Point, *, both: bool) -> str:
    """An arrow between two nodes; of a pair of opposite ones each keeps to its right."""
    length = math.dist(begin, end)
    along = ((end[0] - begin[0]) / length, (end[1] - begin[1]) / length)
    shift = 3 if both else 0
    first = (
        begin[0] + along[0] * NODE_RADIUS - along[1] * shift,
        begin[1] + along[1] * NODE_RADIUS + along[0] * shift,
    )
    last = (
        end[0] - along[0] * NODE_RADIUS - along[1] * shift,
        end[1] - along[1] * NODE_RADIUS + along[0] * shift,
    )
    return arrow_line(first, last, INK, 1.2, dashed=False)


def arrow_line(begin: Point, end: Point, color: str, width: float, *, dashed: bool) -> str:
    """A straight arrow."""
    length = math.dist(begin, end) or 1.0
    x, y = (end[0] - begin[0]) / length, (end[1] - begin[1]) / length
    neck = (end[0] - 7 * x, end[1] - 7 * y)
    half = 2 + width
    head = [(neck[0] - y * half, neck[1] + x * half), (neck[0] + y * half, neck[1] - x * half), end]
    points = " ".join(f"{px:.1f},{py:.1f}" for px, py in head)
    dashes = ' stroke-dasharray="5 3"' if dashed else ""
    return (
        f'<line x1="{begin[0]:.1f}" y1="{begin[1]:.1f}" x2="{neck[0]:.1f}" y2="{neck[1]:.1f}" stroke="{color}" '
        f'stroke-width="{width:.1f}"{dashes}/><polygon points="{points}" fill="{color}"/>'
    )


def part_colors(plan: Plan, arrows: Sequence[Arrow]) -> dict[int, str]:
    """Colors for the parts of a lane, by where they begin: spread over the lane, or over all lanes where each has one part."""
    offsets = sorted({arrow.offset for arrow in arrows})
    if len(offsets) == 1:
        return {offsets[0]: _hue(offsets[0] / plan.count)}
    return {offset: _hue(index / len(offsets)) for index, offset in enumerate(offsets)}


def _hue(share: float) -> str:
    return f"hsl({360 * share:.0f} 65% 42%)"


def text(
    x: float, y: float, content: str, *, bold: bool = False, middle: bool = False, color: str = INK
) -> str:
    """One line of text."""
    weight = ' font-weight="bold"' if bold else ""
    anchor = ' text-anchor="middle"' if middle else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}"{weight}{anchor}>{escape(content)}</text>'
