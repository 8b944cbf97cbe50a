"""Draws times over sizes as SVG, both axes logarithmic: one drawing a dtype."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ddltrain.bench.sizes import format_size
from ddltrain.bench.table import Row

_WIDTH, _HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 540, 40, 370
_COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2")
_FLOOR = "floor"

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class _Axes:
    """Where sizes and times lie in the drawing. Times run over whole powers of ten."""

    low_size: float
    high_size: float
    low_power: int
    high_power: int

    @classmethod
    def around(cls, points: Points) -> "_Axes":
        sizes, times_s = [size for size, _ in points], [time_s for _, time_s in points]
        low_power = math.floor(math.log10(min(times_s)))
        high_power = max(math.ceil(math.log10(max(times_s))), low_power + 1)
        return cls(min(sizes), max(*sizes, min(sizes) * 2), low_power, high_power)

    def x(self, size: float) -> float:
        share = math.log(size / self.low_size) / math.log(self.high_size / self.low_size)
        return _LEFT + share * (_RIGHT - _LEFT)

    def y(self, time_s: float) -> float:
        share = (math.log10(time_s) - self.low_power) / (self.high_power - self.low_power)
        return _BOTTOM - share * (_BOTTOM - _TOP)


def draw(rows: Sequence[Row]) -> str:
    """The whole SVG document. Only rows in place are drawn; there must be one."""
    within = [row for row in rows if row.in_place]
    dtypes = list(dict.fromkeys(row.dtype for row in within))
    drawings = [
        f'<g transform="translate(0,{number * _HEIGHT})">{_drawing([row for row in within if row.dtype == dtype])}</g>'
        for number, dtype in enumerate(dtypes)
    ]
    height = _HEIGHT * len(dtypes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>{"".join(drawings)}</svg>\n'
    )


def _drawing(rows: Sequence[Row]) -> str:
    curves: dict[str, Points] = {}
    for row in rows:
        curves.setdefault(row.algorithm, []).append((row.size_bytes, row.time_s))
    if floor := sorted({(float(row.size_bytes), row.floor_s) for row in rows if row.floor_s}):
        curves[_FLOOR] = floor
    axes = _Axes.around([point for curve in curves.values() for point in curve])
    title = escape(f"{rows[0].place}: all-reduce ({rows[0].op}) of {rows[0].dtype}, in place")
    parts = [f'<text x="{_LEFT}" y="22" font-size="14">{title}</text>']
    parts += [_size_tick(axes.x(size), size) for size in sorted({row.size_bytes for row in rows})]
    parts += [_time_tick(axes.y(10.0**power), power) for power in range(axes.low_power, axes.high_power + 1)]
    parts += [_curve(axes, number, *curve) for number, curve in enumerate(curves.items())]
    return "".join(parts)


def _size_tick(x: float, size_bytes: int) -> str:
    return (
        f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{_BOTTOM}" stroke="#eee"/>'
        f'<text transform="translate({x:.1f},{_BOTTOM + 16}) rotate(30)">{format_size(size_bytes)}</text>'
    )


def _time_tick(y: float, power: int) -> str:
    unit, offset = ("s", 0) if power >= 0 else ("ms", 3) if power >= -3 else ("us", 6)
    return (
        f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_RIGHT}" y2="{y:.1f}" stroke="#ddd"/>'
        f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0 ** (power + offset):g} {unit}</text>'
    )


def _curve(axes: _Axes, number: int, name: str, points: Points) -> str:
    color = "black" if name == _FLOOR else _COLORS[number % len(_COLORS)]
    dashes = ' stroke-dasharray="5 4"' if name == _FLOOR or number >= len(_COLORS) else ""
    style = f'stroke="{color}" stroke-width="2"{dashes}'
    places = [(axes.x(size), axes.y(time_s)) for size, time_s in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in places)
    y = _TOP + 10 + number * 18
    return (
        f'<polyline points="{path}" fill="none" {style}/>{dots}'
        f'<line x1="{_RIGHT + 14}" y1="{y}" x2="{_RIGHT + 38}" y2="{y}" {style}/>'
        f'<text x="{_RIGHT + 44}" y="{y + 4}">{escape(name)}</text>'
    )
