"""The report of a run: report.html, one file that explains the run to a person and can be sent to another.

Top to bottom: headline figures, curves, what the model gets wrong, the recipe, the facts of the run and the
commands to go on. It is drawn from the files of the run folder and the newest evaluation.
"""

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from html import escape as esc
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddltrain.train.metric_rows import MetricRows, points
from ddltrain.train.report_charts import Curve, chart
from ddltrain.train.report_classes import classes_card, wrong_card
from ddltrain.train.report_page import card, facts, page, tile
from ddltrain.train.run_folder import read_facts

if TYPE_CHECKING:
    from PIL import Image

    from ddltrain.train.evaluate import Evaluation

REPORT_FILE = "report.html"


def write_report(
    run: Path,
    evaluation: "Evaluation | None",
    classes: Sequence[str],
    image_of: "Callable[[int], Image.Image]",
    name_of: Callable[[int], str],
) -> None:
    """Writes report.html into the run folder, in one atomic replacement.

    Args:
        run: the run folder; metrics.jsonl, recipe.toml and run.json in it are shown as far as they exist.
        evaluation: of the validation images; without it the page has curves but no classes and images.
        classes: names by label.
        image_of: position in the evaluation -> image; called for at most 36 positions.
        name_of: position in the evaluation -> file name.

    Raises:
        RunError: run.json is damaged.
        OSError: the file cannot be written. What `image_of` raises passes through; the old report then stays.
    """
    if evaluation is not None and evaluation.count == 0:
        evaluation = None
    name = run.resolve().name
    run_facts = read_facts(run)
    rows = MetricRows(run)
    parts = [f"<h1>{esc(name)}</h1>", _headline(rows, evaluation, run_facts, len(classes)), _curves(rows)]
    if evaluation is not None:
        parts.append(classes_card(evaluation, classes))
        parts.append(wrong_card(evaluation, classes, image_of, name_of))
    else:
        parts.append(card("Classes", '<p class="soft">The model has not been evaluated yet.</p>'))
    if rows.timeline:
        parts.append(_time_spent(rows.timeline[-1]))
    parts.append(_recipe_and_facts(run / "recipe.toml", run_facts))
    parts.append(_commands(run, run_facts))
    _replace(run / REPORT_FILE, page(name, "\n".join(parts)))


def _headline(
    rows: MetricRows, evaluation: "Evaluation | None", run_facts: Mapping[str, Any], num_classes: int
) -> str:
    tiles = []
    if evaluation is not None:
        tiles.append(_accuracy_tile("top-1", evaluation.top1, evaluation.correct1, evaluation.count))
        if num_classes > 5:  # else it says nothing
            tiles.append(_accuracy_tile("top-5", evaluation.top5, evaluation.correct5, evaluation.count))
    elif rows.eval:
        last = rows.eval[-1]
        tiles.append(_accuracy_tile("top-1", last["top1"], last["correct1"], last["count"]))
        if num_classes > 5:
            tiles.append(_accuracy_tile("top-5", last["top5"], last["correct5"], last["count"]))
    if rows.epoch:
        tiles.append(tile(str(rows.epoch[-1]["epoch"]), "epochs"))
        tiles.append(tile(_duration(rows.time_s), "training time"))
        tiles.append(tile(f"{rows.images_per_s:,.0f}", "images a second (mean)"))
    if "ranks" in run_facts:
        tiles.append(tile(str(run_facts["ranks"]), "ranks"))
    return (
        f'<div class="tiles">{"".join(tiles)}</div>' if tiles else '<p class="soft">Nothing measured yet.</p>'
    )


def _accuracy_tile(name: str, percent: float, num_right: int, count: int) -> str:
    return tile(f"{percent:.2f} %", f"{name}: {num_right:,} of {count:,} images")


def _curves(rows: MetricRows) -> str:
    def curves(key: str, with_val: bool) -> list[Curve]:
        drawn = [
            Curve("train, each step", "train faint", points(rows.train, key)),
            Curve("train, mean of the epoch", "train", points(rows.epoch, key)),
        ]
        if not with_val:
            return drawn
        average = Curve("validation, average of the weights", "val faint", points(rows.average, key))
        return [*drawn, Curve("validation", "val", points(rows.eval, key)), average]

    rate = points(rows.train, "lr") or points(rows.epoch, "lr")
    charts = [
        chart("Loss", curves("loss", True)),
        chart("Top-1 accuracy (%)", curves("top1", True), high=100),
        chart("Learning rate", [Curve("learning rate", "train", rate)], from_zero=True),
        chart("Throughput (images a second)", curves("images_per_s", False), from_zero=True),
    ]
    return card("Curves", f'<div class="columns">{"".join(charts)}</div>')


def _time_spent(row: Mapping[str, Any]) -> str:
    """A bar for each kind of span, and one for what lies between them."""
    total_s = max(row["total_s"] or 0.0, 1e-9)
    spans_s = {str(name): time_s or 0.0 for name, time_s in row["spans_s"].items()}
    spans_s["between them"] = max(0.0, total_s - sum(spans_s.values()))
    lines = "".join(
        f'<tr><td>{esc(name)}</td><td class="number wide">{_duration(time_s)}</td>'
        f'<td class="number">{100 * time_s / total_s:.1f} %</td>'
        f'<td><div class="bar"><i style="width:{min(100, 100 * time_s / total_s):.1f}%"></i></div></td></tr>'
        for name, time_s in spans_s.items()
    )
    note = f'<p class="soft">Mean of the ranks over {_duration(total_s)}; timeline.json has each span.{_exposed(row)}</p>'
    return card("Where the time went", f'{note}<table class="list">{lines}</table>')


def _exposed(row: Mapping[str, Any]) -> str:
    """How much of the all-reduces backward did not hide; nothing where there were none, or the row is of an earlier version."""
    comm_s, exposed_s = row.get("comm_s"), row.get("comm_exposed_s")
    if not comm_s or exposed_s is None:
        return ""
    return f" All-reduces were under way for {_duration(comm_s)}, of which {_duration(exposed_s)} lay behind backward (exposed)."


def _recipe_and_facts(recipe: Path, run_facts: Mapping[str, Any]) -> str:
    text = recipe.read_text(encoding="utf-8", errors="replace") if recipe.exists() else "not recorded"
    table = facts((k, v if isinstance(v, str) else json.dumps(v)) for k, v in run_facts.items())
    cards = card("Recipe", f"<pre>{esc(text)}</pre>") + card(
        "Run", table if run_facts else "<p>not recorded</p>"
    )
    return f'<div class="columns">{cards}</div>'


def _commands(run: Path, run_facts: Mapping[str, Any]) -> str:
    evaluate = f"ddltrain evaluate {shlex.quote(str(run))}"
    body = f'<p>Evaluate the checkpoint:</p><pre class="command">{esc(evaluate)}</pre>'
    command = run_facts.get("command")
    if isinstance(command, str) and command:
        resume = command if "--resume" in command.split() else f"{command} --resume"
        body += f'<p>Go on after an interruption:</p><pre class="command">{esc(resume)}</pre>'
    return card("Commands", body)


def _duration(seconds: float) -> str:
    minutes, whole_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {whole_s:02d} s" if minutes else f"{seconds:.1f} s"


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        # File names need not be valid Unicode: what cannot be written becomes a question mark.
        temporary.write_bytes(text.encode("utf-8", errors="replace"))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
