"""report.html: what it shows, what it must not break on, and that it stands alone."""

import base64
import io
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ddltrain.errors import RunError
from ddltrain.train.log import MetricsLog
from ddltrain.train.report import write_report

VOID = {"meta", "img", "br", "wbr", "line", "path"}


@dataclass(frozen=True)
class FakeEvaluation:
    labels: np.ndarray
    predictions: np.ndarray
    confidences: np.ndarray
    loss: float = 0.5

    @property
    def count(self) -> int:
        return len(self.labels)

    @property
    def correct1(self) -> int:
        return int((self.labels == self.predictions).sum())

    correct5 = correct1

    @property
    def top1(self) -> float:
        return 100 * self.correct1 / self.count

    top5 = top1


class Page(HTMLParser):
    """Checks that tags are balanced, and collects texts and attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.style = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {key: value or "" for key, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {key: value or "" for key, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.style += data
        elif self.open:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def images(self) -> list[Image.Image]:
        sources = [attrs["src"].split("base64,")[1] for tag, attrs in self.tags if tag == "img"]
        return [Image.open(io.BytesIO(base64.b64decode(source))) for source in sources]


def noise(size: tuple[int, int]) -> Callable[[int], Image.Image]:
    """Images by number, each different."""

    def image_of(i: int) -> Image.Image:
        pixels = np.random.default_rng(i).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        return Image.fromarray(pixels)

    return image_of


def evaluation_of(
    labels: Sequence[int], predictions: Sequence[int], confidences: Sequence[float] = ()
) -> Any:
    sure = np.asarray(confidences or np.full(len(labels), 0.5), dtype=np.float32)
    return FakeEvaluation(np.asarray(labels, np.int64), np.asarray(predictions, np.int64), sure)


def write_rows(run: Path, rows: list[dict[str, Any]]) -> None:
    log = MetricsLog(run, None)
    for row in rows:
        log.write(row)
    log.close()


def train_rows(losses: Sequence[float], epochs: int) -> list[dict[str, Any]]:
    common = {"kind": "train", "top1": 10.0, "lr": 0.1, "images_per_s": 50.0, "data_wait_s": 0.0}
    n = len(losses)
    return [{**common, "step": i + 1, "epoch": epochs * (i + 1) / n, "loss": y} for i, y in enumerate(losses)]


def report(
    run: Path, evaluation: Any, classes: Sequence[str], size: tuple[int, int] = (8, 8), name: str = "a/{}.png"
) -> Page:
    write_report(run, evaluation, classes, noise(size), name.format)
    assert sorted(path.name for path in run.iterdir() if "tmp" in path.name) == []
    page = Page((run / "report.html").read_text(encoding="utf-8"))
    for _, attrs in page.tags:
        assert all(key not in attrs for key in ("href", "srcset", "onclick", "onerror"))
        assert attrs.get("src", "data:image/").startswith("data:image/")
    assert not re.search(r"url\(|@import", page.style)
    return page


def test_page_without_anything(tmp_path: Path) -> None:
    page = report(tmp_path, None, ["a"])
    assert tmp_path.name in page.text
    assert "not been evaluated yet" in page.text


def test_headline_figures_recipe_facts_and_commands(tmp_path: Path) -> None:
    rows = train_rows([2.0, 1.0], 2)
    for epoch in (1, 2):
        common = {"step": epoch, "epoch": epoch, "loss": 1.0, "top1": 50.0}
        rows.append({"kind": "epoch", **common, "lr": 0.1, "images_per_s": 1000.0 * epoch, "time_s": 40.0})
        rows.append({"kind": "eval", **common, "top5": 75.0, "correct1": 2, "correct5": 3, "count": 4})
    write_rows(tmp_path, rows)
    (tmp_path / "recipe.toml").write_text("[model]\nname = 'né<t>'\n", encoding="utf-8")
    facts = {"ranks": 7, "commit": "abc123", "command": "ddltrain train r.toml --ranks 7", "sizes": [1, 2]}
    (tmp_path / "run.json").write_text(json.dumps(facts))
    page = report(tmp_path, evaluation_of([0, 1, 1, 0], [0, 1, 1, 1]), ["cat", "dog"])
    for text in (
        *(
            "75.00 %",
            "top-1: 3 of 4 images",
            "1 min 20 s",
            "1,500 images a second (mean)",
            "7 ranks",
            "2 epochs",
        ),
        *("name = 'né<t>'", "commit abc123", "sizes [1, 2]"),
        *(f"ddltrain evaluate {tmp_path}", "ddltrain train r.toml --ranks 7 --resume"),
    ):
        assert text in page.text
    page = report(tmp_path, None, ["cat", "dog"])
    assert "top-1: 2 of 4 images" in page.text  # without an evaluation: from the last row


def test_rows_written_twice_count_once(tmp_path: Path) -> None:
    row = {"kind": "epoch", "step": 5, "epoch": 1, "loss": 1.0, "top1": 1.0, "lr": 0.1, "images_per_s": 1.0}
    write_rows(tmp_path, [{**row, "time_s": 10.0}, {**row, "time_s": 30.0}])
    assert "30.0 s training time" in report(tmp_path, None, ["a"]).text


def test_confusion_matrix_counts_are_true_by_prediction(tmp_path: Path) -> None:
    labels = [0] * 7 + [1] * 5 + [2] * 3
    predictions = [*(0, 0, 0, 0, 0, 1, 1), *(1, 1, 1, 1, 0), *(2, 2, 2)]
    page = report(tmp_path, evaluation_of(labels, predictions), ["cat", "dog", "eel"])
    assert "cat 5 2 0 dog 1 4 0 eel 0 0 3" in page.text
    # bars, worst first
    assert "cat 71.4 % 5/7 dog 80.0 % 4/5 eel 100.0 % 3/3" in page.text


def test_many_classes_show_the_worst_the_best_and_the_most_confused(tmp_path: Path) -> None:
    n = 1000
    labels = np.repeat(np.arange(n), 10)
    predictions = labels.copy()
    predictions[70:77] = 999  # class 7: 7 of 10 taken for class 999
    predictions[10] = 2
    page = report(tmp_path, evaluation_of(labels, predictions), [f"class-{i:03d}" for i in range(n)])
    text = page.text.split("Worst classes")[1]
    assert text.startswith(" class-007 30.0 % 3/10 class-001 90.0 % 9/10 ")
    worst, rest = text.split("Best classes")
    best, pairs = rest.split("Most confused")
    assert worst.count("class-") == 15
    assert best.count("class-") == 15
    assert "class-007 class-999 7 /10 class-001 class-002 1 /10" in pairs
    assert len((tmp_path / "report.html").read_bytes()) < 200_000


def test_wrong_images_most_confident_first(tmp_path: Path) -> None:
    confidences = [0.9, 0.2, 0.6, 0.8]
    page = report(tmp_path, evaluation_of([0, 0, 1, 1], [0, 1, 0, 0], confidences), ["cat", "dog"])
    text = page.text.split("Wrongly classified images")[1]
    order = ["dog taken for cat, 80.0 %", "dog taken for cat, 60.0 %", "cat taken for dog, 20.0 %"]
    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)
    assert "3 of 4 images are wrong" in text
    for picture, i in zip(page.images(), (3, 2, 1), strict=True):
        assert np.array_equal(np.asarray(picture), np.asarray(noise((8, 8))(i)))


def test_at_most_36_wrong_images_made_small(tmp_path: Path) -> None:
    page = report(tmp_path, evaluation_of([0] * 100, [1] * 100), ["cat", "dog"], size=(500, 250))
    assert "100 of 100 images are wrong; here are the 36 most confident ones" in page.text
    assert [picture.size for picture in page.images()] == [(160, 80)] * 36


@pytest.mark.parametrize("num_classes", [1, 2, 20, 21])
def test_no_wrong_image(tmp_path: Path, num_classes: int) -> None:
    labels = list(range(num_classes)) * 2
    page = report(tmp_path, evaluation_of(labels, labels), [f"c{i}" for i in range(num_classes)])
    assert f"all {2 * num_classes} images are classified correctly" in page.text
    assert page.images() == []


def test_class_without_images(tmp_path: Path) -> None:
    page = report(tmp_path, evaluation_of([0, 0], [0, 1]), ["cat", "dog"])
    assert "cat 50.0 % 1/2" in page.text
    assert "dog 0.0 %" not in page.text


@pytest.mark.parametrize("num_classes", [2, 30])
def test_markup_in_names_is_text(tmp_path: Path, num_classes: int) -> None:
    run = tmp_path / "run <i> & 'co'"
    run.mkdir()
    evil = "<script>alert('x')</script>\"><img src=http://example.com/x>"
    (run / "recipe.toml").write_text(f"# {evil}")
    (run / "run.json").write_text(json.dumps({evil: evil, "command": evil}))
    classes = [f"{evil}{i}" for i in range(num_classes)]
    page = report(run, evaluation_of([0, 1], [1, 0]), classes, name=evil + "{}/ü\udcff.png")
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "a", "iframe"})
    assert len(page.images()) == 2
    assert f"{evil}0" in page.text
    assert "ü?.png" in page.text
    assert run.name in page.text


def drawn_points(page: Page) -> list[tuple[float, float]]:
    paths = [attrs["d"] for tag, attrs in page.tags if tag == "path"]
    assert "nan" not in "".join(paths)
    return [(float(x), float(y)) for path in paths for x, y in re.findall(r"([-\d.]+) ([-\d.]+)", path)]


def test_not_finite_losses_break_the_line_and_are_said(tmp_path: Path) -> None:
    write_rows(tmp_path, train_rows([3.0, 2.0, math.nan, math.inf, 2.5, 2.0, 1e38, 1.0], 1))
    page = report(tmp_path, None, ["a"])
    assert "Points that are not a finite number: 3" in page.text
    loss = next(attrs["d"] for tag, attrs in page.tags if tag == "path")
    assert loss.count("M") == 2
    drawn_points(page)


def test_only_lost_losses(tmp_path: Path) -> None:
    write_rows(tmp_path, train_rows([math.nan] * 3, 1))
    assert "No point is a finite number (3 points)" in report(tmp_path, None, ["a"]).text


def test_long_run_is_thinned_but_keeps_its_spikes(tmp_path: Path) -> None:
    losses = [2.0 + 0.1 * math.sin(i) for i in range(12_000)]
    write_rows(tmp_path, train_rows(losses, 90))
    calm = min(y for _, y in drawn_points(report(tmp_path, None, ["a"])))
    losses[7_001] = 9.0
    losses[7_002] = math.nan
    write_rows(tmp_path, train_rows(losses, 90))
    page = report(tmp_path, None, ["a"])
    points = drawn_points(page)
    assert len(points) < 4 * 600
    path = next(attrs["d"] for tag, attrs in page.tags if tag == "path")
    assert path.count("M") == 2
    loss = [float(y) for y in re.findall(r" ([-\d.]+)", path)]
    assert sorted(loss)[1] - sorted(loss)[0] > 100  # one spike, far above (SVG counts downwards) the rest
    assert calm < 60
    assert "Points that are not a finite number: 1" in page.text


@pytest.mark.parametrize("losses", [[0.0], [5.0], [1.0, 1.0], [0.0, 0.0], [1e-12, 1e29], [-3.0, 4.0]])
def test_awkward_ranges_stay_inside_the_drawing(tmp_path: Path, losses: list[float]) -> None:
    write_rows(tmp_path, train_rows(losses, 1))
    page = report(tmp_path, None, ["a"])
    dots = [(float(a["cx"]), float(a["cy"])) for tag, a in page.tags if tag == "circle"]
    points = drawn_points(page) + dots
    assert points
    assert all(52 <= x <= 448 and 10 <= y <= 208 for x, y in points)


def test_damaged_run_facts_are_named(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"ranks": ')
    with pytest.raises(RunError, match=r"run\.json"):
        report(tmp_path, None, ["a"])
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(RunError, match=r"run\.json"):
        report(tmp_path, None, ["a"])


def test_failure_leaves_the_old_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report(tmp_path, None, ["a", "b"])
    old = (tmp_path / "report.html").read_bytes()

    def broken(i: int) -> Image.Image:
        raise OSError(f"image {i} is gone")

    with pytest.raises(OSError, match="image 0 is gone"):
        write_report(tmp_path, evaluation_of([0], [1]), ["a", "b"], broken, str)
    assert (tmp_path / "report.html").read_bytes() == old

    def full(source: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="disk full"):
        write_report(tmp_path, None, ["other"], broken, str)
    assert (tmp_path / "report.html").read_bytes() == old
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_the_time_of_a_run_with_a_timeline_is_broken_down(tmp_path: Path) -> None:
    spans = {"forward": 4.0, "<backward>": 5.0}
    comm = {"comm_s": 4.0, "comm_exposed_s": 1.5}
    write_rows(tmp_path, [{"kind": "timeline", "step": 3, "total_s": 10.0, "spans_s": spans, **comm}])
    page = report(tmp_path, None, ["a"])
    assert "Where the time went" in page.text
    for words in (
        "forward",
        "40.0 %",
        "<backward>",
        "50.0 %",
        "between them",
        "10.0 %",
        "4.0 s, of which 1.5 s",
    ):
        assert words in page.text
