"""Line charts as SVG that takes its colours from where it stands: a report (light and dark), or a drawing of several runs."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape as esc

WIDTH, HEIGHT = 460, 244
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 448, 10, 208
_MAX_POINTS = 600
_MAX_DOTS = 60
# Beyond this a value says only that training has blown up, and differences of such values would overflow.
_HUGE = 1e30
_LOG_SCALE_FROM = 200.0


@dataclass(frozen=True)
class Curve:
    """One line of a chart.

    Attributes:
        name: what the legend calls it.
        style: its CSS classes; in a report "train" or "val", with " faint" behind it for the noisy figures of single steps.
        points: (x, y) with x rising; a y of None (or not finite) breaks the line.
    """

    name: str
    style: str
    points: Sequence[tuple[float, float | None]]


def chart(title: str, curves: Iterable[Curve], from_zero: bool = False, high: float | None = None) -> str:
    """Draws curves over epochs.

    Args:
        title: plain text, with the unit.
        curves: those without any point are left out.
        from_zero: the y axis begins at 0. Otherwise it fits the values.
        high: the y axis does not go above it. Without it (and not from zero) a very wide range gets a
            logarithmic axis.

    Returns:
        HTML: a heading, a legend, the drawing, and a note if some values were not finite.
    """
    drawn = [curve for curve in curves if curve.points]
    num_lost = sum(_is_lost(y) for curve in drawn for _, y in curve.points)
    head = f"<h3>{esc(title)}</h3>"
    drawing = draw(title, drawn, from_zero, high)
    if drawing is None:
        text = f"No point is a finite number ({num_lost} points)." if num_lost else "No figures."
        return f'<div>{head}<p class="soft">{text}</p></div>'
    keys = "".join(
        f'<span class="key"><i class="{c.style}"></i>{esc(c.name)}</span>' for c in drawn if len(drawn) > 1
    )
    note = f'<p class="soft">Points that are not a finite number: {num_lost}.</p>' if num_lost else ""
    return f"<div>{head}<div>{keys}</div>{drawing}{note}</div>"


def draw(
    title: str, curves: Sequence[Curve], from_zero: bool = False, high: float | None = None
) -> str | None:
    """The drawing of `chart`, an SVG element without heading and legend; None where no value is finite."""
    drawn = [Curve(curve.name, curve.style, _thinned(curve.points)) for curve in curves]
    known = [y for curve in drawn for _, y in curve.points if y is not None and not _is_lost(y)]
    if not known:
        return None
    scale = _Scale.of([x for curve in drawn for x, _ in curve.points], known, from_zero, high)
    lines = "".join(_line(curve, scale) for curve in drawn)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{esc(title)}">'
        f"{_axes(scale)}{lines}</svg>"
    )


@dataclass(frozen=True)
class _Scale:
    """Where a point lies in the drawing."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    is_log: bool

    @classmethod
    def of(cls, xs: Sequence[float], ys: Sequence[float], from_zero: bool, high: float | None) -> "_Scale":
        x_low = min(0.0, *xs)
        x_high = max(xs) if max(xs) > x_low else x_low + 1
        y_low, y_high = min(ys), max(ys)
        if not from_zero and high is None and y_low > 0 and y_high / y_low > _LOG_SCALE_FROM:
            return cls(x_low, x_high, math.log10(y_low) - 0.05, math.log10(y_high) + 0.05, True)
        margin = (y_high - y_low) * 0.05 or abs(y_high) * 0.05 or 1.0
        bottom = y_low - margin
        if y_low >= 0:
            bottom = 0.0 if from_zero else max(0.0, bottom)
        top = y_high + margin if high is None else min(high, y_high + margin)
        return cls(x_low, x_high, bottom, top, False)

    def x(self, value: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (value - self.x_low) / (self.x_high - self.x_low)

    def y(self, value: float) -> float:
        value = math.log10(value) if self.is_log else value
        return _BOTTOM - (_BOTTOM - _TOP) * (value - self.y_low) / (self.y_high - self.y_low)

    def y_ticks(self) -> list[float]:
        if not self.is_log:
            return _ticks(self.y_low, self.y_high, 6)
        first, last = math.ceil(self.y_low), math.floor(self.y_high)
        return [10.0**power for power in range(first, last + 1, max(1, (last - first) // 5 + 1))]


def _axes(scale: _Scale) -> str:
    parts = []
    for tick in scale.y_ticks():
        y = scale.y(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{_RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_label(tick)}</text>')
    for tick in _ticks(scale.x_low, scale.x_high, 8):
        x = scale.x(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{_BOTTOM}" x2="{x:.1f}" y2="{_BOTTOM + 4}"/>')
        parts.append(f'<text x="{x:.1f}" y="{_BOTTOM + 17}" text-anchor="middle">{_label(tick)}</text>')
    middle = (_LEFT + _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 2}" text-anchor="middle">epoch</text>')
    return "".join(parts)


def _line(curve: Curve, scale: _Scale) -> str:
    """The curve, broken where a value is missing; points that stand alone, or are few, get a dot."""
    pieces: list[list[str]] = [[]]
    dots = []
    for x, y in curve.points:
        if y is None or _is_lost(y):
            pieces.append([])
            continue
        px, py = f"{scale.x(x):.1f}", f"{scale.y(y):.1f}"
        pieces[-1].append(f"{px} {py}")
        title = f"{esc(curve.name)}: {y:.4g} at epoch {x:.4g}"
        dots.append(
            f'<circle class="{curve.style}" cx="{px}" cy="{py}" r="3"><title>{title}</title></circle>'
        )
    path = "".join("M" + " L".join(piece) for piece in pieces if len(piece) > 1)
    has_dots = len(dots) == 1 or ("faint" not in curve.style and len(dots) <= _MAX_DOTS)
    drawn = f'<path class="curve {curve.style}" d="{path}"/>' if path else ""
    return drawn + ("".join(dots) if has_dots else "")


def _thinned(points: Sequence[tuple[float, float | None]]) -> Sequence[tuple[float, float | None]]:
    """At most some hundred points: the lowest and the highest of each stretch, so that spikes stay."""
    if len(points) <= _MAX_POINTS:
        return points
    num_stretches = _MAX_POINTS // 3
    kept: list[tuple[float, float | None]] = []
    for i in range(num_stretches):
        stretch = points[i * len(points) // num_stretches : (i + 1) * len(points) // num_stretches]
        known = [(y, j) for j, (_, y) in enumerate(stretch) if y is not None and not _is_lost(y)]
        lost = [j for j, (_, y) in enumerate(stretch) if _is_lost(y)]
        chosen = {min(known)[1], max(known)[1]} if known else set()
        kept.extend(stretch[j] for j in sorted(chosen | set(lost[:1])))
    return kept


def _is_lost(y: float | None) -> bool:
    return y is None or not abs(y) < _HUGE


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers from `low` to `high`, at most `most` of them."""
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if power * factor >= raw)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _label(value: float) -> str:
    if value != 0 and (abs(value) >= 100_000 or abs(value) < 0.001):
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")
    return f"{value:.6g}"
