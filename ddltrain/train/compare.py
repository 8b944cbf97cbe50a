"""Runs side by side: what they reached, in which recipe keys they differ, and their curves in one drawing."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape as esc
from pathlib import Path
from typing import Any

from ddltrain.errors import RunError
from ddltrain.recipe import read_recipe
from ddltrain.train.log import METRICS_FILE
from ddltrain.train.metric_rows import MetricRows, points
from ddltrain.train.report_charts import HEIGHT, WIDTH, Curve, draw
from ddltrain.train.run_folder import RECIPE_FILE, read_facts

COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2")
_LINE_HEIGHT = 20


@dataclass(frozen=True)
class Run:
    """A run to compare.

    Attributes:
        name: what tables and legends call it.
        rows: its metrics.
        recipe: value by "section.key"; without the keys that say where its data lie.
    """

    name: str
    rows: MetricRows
    recipe: dict[str, Any]


def read_run(path: Path, name: str | None = None) -> Run:
    """The run in the folder `path`, under its own name or another.

    Raises:
        RunError: there is no run, it has not ended an epoch, or its files cannot be read.
        RecipeError: its recipe cannot.
    """
    try:
        return _read(path, name or str(path))
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error}") from None


def _read(path: Path, name: str) -> Run:
    if not (path / METRICS_FILE).is_file():
        raise RunError(
            f"{path}: no run is there (no {METRICS_FILE}); give the folders that `ddltrain train --run` made"
        )
    rows = MetricRows(path)
    if not rows.epoch:
        raise RunError(f"{path}: the run has not ended an epoch yet; there is nothing to compare")
    # Keys that are newer than a run have their defaults there.
    tables = asdict(read_recipe(path / RECIPE_FILE))
    recipe = {f"{section}.{key}": value for section, table in tables.items() for key, value in table.items()}
    recipe["ranks"] = read_facts(path).get("ranks")
    del recipe["data.path"]
    return Run(name, rows, recipe)


def differences(runs: Sequence[Run]) -> list[tuple[str, list[Any]]]:
    """The recipe keys in which runs differ, and each run's value."""
    names = dict.fromkeys(name for run in runs for name in run.recipe)
    values = [(name, [run.recipe.get(name) for run in runs]) for name in names]
    return [(name, own) for name, own in values if any(value != own[0] for value in own)]


def results(run: Run) -> list[str]:
    """Epochs, top-1 of the last and the best evaluation, loss of the last epoch, minutes of training, images a second."""
    accuracies = [row["top1"] for row in run.rows.eval if row["top1"] is not None]
    loss = run.rows.epoch[-1]["loss"]
    return [
        f"{run.rows.epoch[-1]['epoch']:g}",
        f"{accuracies[-1]:.2f} %" if accuracies else "-",
        f"{max(accuracies):.2f} %" if accuracies else "-",
        "-" if loss is None else f"{loss:.4f}",
        f"{run.rows.time_s / 60:.1f}",
        f"{run.rows.images_per_s:,.0f}",
    ]


def drawing(runs: Sequence[Run]) -> str:
    """An SVG document: validation top-1 and training loss over epochs, a colour for each run."""
    panels = [
        ("Validation top-1 (%)", 100.0, [points(run.rows.eval, "top1") for run in runs]),
        ("Training loss", None, [points(run.rows.epoch, "loss") for run in runs]),
    ]
    parts = []
    for number, (title, high, lines) in enumerate(panels):
        curves = [
            Curve(run.name, f"run{index}", line)
            for index, (run, line) in enumerate(zip(runs, lines, strict=True))
            if line
        ]
        chart = draw(title, curves, high=high) or "<text y='40'>no figures</text>"
        parts.append(
            f'<text x="{number * WIDTH + 52}" y="18" font-weight="bold">{title}</text>'
            f'<svg x="{number * WIDTH}" y="24" width="{WIDTH}" height="{HEIGHT}">{chart}</svg>'
        )
    for index, run in enumerate(runs):
        y = HEIGHT + 40 + index * _LINE_HEIGHT
        parts.append(
            f'<rect class="key run{index}" x="52" y="{y - 6}" width="24" height="3"/><text x="84" y="{y}">{esc(run.name)}</text>'
        )
    width, height = 2 * WIDTH, HEIGHT + 40 + len(runs) * _LINE_HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="12" fill="#1f2933"><style>{_style(len(runs))}</style>'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


def _style(num_runs: int) -> str:
    own = "".join(
        f".curve.run{index}{{stroke:{color}}}circle.run{index},.key.run{index}{{fill:{color}}}"
        for index, color in enumerate(COLORS[:num_runs])
    )
    return f".grid{{stroke:#d5dae0}}.curve{{fill:none;stroke-width:2;stroke-linejoin:round}}{own}"
