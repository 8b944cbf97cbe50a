"""What a model gets wrong, as parts of a report: confusions, accuracy by class, wrongly classified images."""

import base64
import io
from collections.abc import Callable, Sequence
from html import escape as esc
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ddltrain.train.report_page import card

if TYPE_CHECKING:
    from PIL import Image

    from ddltrain.train.evaluate import Evaluation

_MAX_MATRIX_CLASSES = 20
_NARROW_CLASSES = 10  # a matrix of more classes takes the whole width
_NUM_LISTED = 15
_NUM_WRONG = 36
_TINY_PX = 96
_THUMBNAIL_PX = 160

_Counts = npt.NDArray[np.int64]


def classes_card(evaluation: "Evaluation", classes: Sequence[str]) -> str:
    """Confusion matrix and accuracy of each class; of many classes only the worst, best and most confused.

    Args:
        evaluation: of at least one image.
        classes: names by label; need not differ.
    """
    n = len(classes)
    confusion = np.bincount(evaluation.labels * n + evaluation.predictions, minlength=n * n).reshape(n, n)
    totals = confusion.sum(axis=1)
    rates = np.diagonal(confusion) / np.maximum(totals, 1)
    seen = np.flatnonzero(totals)
    order = seen[np.argsort(rates[seen], kind="stable")]  # worst first
    if n <= _MAX_MATRIX_CLASSES:
        half = len(order) if n <= _NARROW_CLASSES else (len(order) + 1) // 2
        bars = "".join(
            f"<div><h3>Accuracy by class</h3>{_bars(part, confusion, classes)}</div>"
            for part in (order[:half], order[half:])
            if len(part) > 0
        )
        return card("Classes", f'<div class="columns">{_matrix(confusion, classes)}{bars}</div>')
    worst = _bars(order[:_NUM_LISTED], confusion, classes)
    best = _bars(order[_NUM_LISTED:][::-1][:_NUM_LISTED], confusion, classes)
    body = (
        f"<div><h3>Worst classes</h3>{worst}</div><div><h3>Best classes</h3>{best}</div>"
        f"<div><h3>Most confused</h3>{_pairs(confusion, classes)}</div>"
    )
    return card("Classes", f'<div class="thirds">{body}</div>')


def wrong_card(
    evaluation: "Evaluation",
    classes: Sequence[str],
    image_of: "Callable[[int], Image.Image]",
    name_of: Callable[[int], str],
) -> str:
    """A grid of wrongly classified images, those the model was surest of first.

    Args:
        evaluation: of at least one image.
        classes: names by label.
        image_of: position in the evaluation -> image.
        name_of: position in the evaluation -> file name.
    """
    wrong = np.flatnonzero(evaluation.labels != evaluation.predictions)
    if len(wrong) == 0:
        text = f"None: all {evaluation.count:,} images are classified correctly."
        return card("Wrongly classified images", f"<p>{text}</p>")
    surest = wrong[np.argsort(-evaluation.confidences[wrong], kind="stable")][:_NUM_WRONG]
    figures = []
    for i in surest.tolist():
        label = esc(classes[evaluation.labels[i]])
        prediction = esc(classes[evaluation.predictions[i]])
        figures.append(
            f"<figure><div>{_picture(image_of(i), label)}</div><figcaption>{label}<br>"
            f'<span class="is">taken for {prediction}, {100 * evaluation.confidences[i]:.1f}&nbsp;%</span>'
            f'<span class="name">{_breakable(name_of(i))}</span></figcaption></figure>'
        )
    shown = f"the {len(surest)} most confident ones" if len(surest) < len(wrong) else "all of them"
    text = f"{len(wrong):,} of {evaluation.count:,} images are wrong; here are {shown}."
    body = f'<p class="soft">{text}</p><div class="wrong">{"".join(figures)}</div>'
    return card("Wrongly classified images", body)


def _matrix(confusion: _Counts, classes: Sequence[str]) -> str:
    """Rows are true classes, columns predictions; the colour is the share of the row."""
    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    heads = "".join(
        f'<th class="column" title="{esc(name)}"><span>{esc(name)}</span></th>' for name in classes
    )
    rows = []
    for i, name in enumerate(classes):
        cells = "".join(
            _cell(int(confusion[i, j]), float(shares[i, j]), i == j, f"{name} taken for {other}")
            for j, other in enumerate(classes)
        )
        rows.append(f'<tr><th class="row" title="{esc(name)}">{esc(name)}</th>{cells}</tr>')
    table = f'<table class="matrix"><tr><th></th>{heads}</tr>{"".join(rows)}</table>'
    width = "narrow" if len(classes) <= _NARROW_CLASSES else "whole-row"
    return (
        f'<div class="{width}"><h3>Confusion matrix</h3>'
        '<p class="soft">Rows: true class. Columns: prediction.</p>'
        f'<div class="scroll">{table}</div></div>'
    )


def _cell(count: int, share: float, is_right: bool, meaning: str) -> str:
    if count == 0:
        return '<td class="zero">0</td>'
    # A square root lets rare confusions, the interesting ones, be seen beside the diagonal.
    strength = 0.12 + 0.6 * (share if is_right else share**0.5)
    color = f"rgba(var({'--good' if is_right else '--bad'}), {strength:.2f})"
    return f'<td style="background: {color}" title="{esc(meaning)}: {100 * share:.1f} %">{count}</td>'


def _bars(order: _Counts, confusion: _Counts, classes: Sequence[str]) -> str:
    rows = []
    for i in order.tolist():
        right, total = int(confusion[i, i]), int(confusion[i].sum())
        percent = 100 * right / total
        bar = f'<div class="bar"><i style="width: {percent:.1f}%"></i></div>'
        rows.append(
            f'<tr><td>{esc(classes[i])}</td><td class="level">{bar}</td>'
            f'<td class="number">{percent:.1f} %</td><td class="number wide soft">{right}/{total}</td></tr>'
        )
    return f'<table class="list">{"".join(rows)}</table>'


def _pairs(confusion: _Counts, classes: Sequence[str]) -> str:
    """The most frequent confusions of one class with another."""
    counts = confusion.copy()
    np.fill_diagonal(counts, 0)
    order = np.argsort(-counts, axis=None, kind="stable")[:_NUM_LISTED]
    rows = []
    for i, j in zip(*np.unravel_index(order, counts.shape), strict=True):
        if counts[i, j] > 0:
            rows.append(
                f"<tr><td>{esc(classes[i])}</td><td>{esc(classes[j])}</td>"
                f'<td class="number">{counts[i, j]}<span class="soft">/{confusion[i].sum()}</span></td></tr>'
            )
    if not rows:
        return '<p class="soft">No confusion at all.</p>'
    head = '<tr><th>class</th><th>taken for</th><th class="number">images</th></tr>'
    return f'<table class="list">{head}{"".join(rows)}</table>'


def _breakable(name: str) -> str:
    """A file name as HTML that breaks into lines at its own seams."""
    return esc(name).replace("/", "/<wbr>").replace("_", "_<wbr>")


def _picture(image: "Image.Image", label: str) -> str:
    """An <img> with the image inside: a tiny one exactly, to be shown enlarged, a big one made smaller."""
    image = image.convert("RGB")
    buffer = io.BytesIO()
    is_tiny = max(image.size) <= _TINY_PX
    if is_tiny:
        image.save(buffer, "PNG")
    else:
        image.thumbnail((_THUMBNAIL_PX, _THUMBNAIL_PX))
        image.save(buffer, "JPEG", quality=85)
    data = base64.b64encode(buffer.getvalue()).decode()
    kind = ("tiny", "png") if is_tiny else ("big", "jpeg")
    return f'<img class="{kind[0]}" alt="{label}" src="data:image/{kind[1]};base64,{data}">'
