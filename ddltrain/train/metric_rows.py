"""What a run told of itself, by kind, for reports and comparisons."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddltrain.train.log import read_metrics

# What a row must have to be shown, by kind; someone may have edited the file.
_KEYS: dict[Any, set[str]] = {
    "train": {"epoch", "loss", "top1", "lr", "images_per_s", "data_wait_s"},
    "epoch": {"epoch", "loss", "top1", "lr", "images_per_s", "time_s"},
    "eval": {"epoch", "loss", "top1", "top5", "correct1", "correct5", "count"},
    "ema": {"epoch", "loss", "top1"},
    "timeline": {"total_s", "spans_s"},
}


class MetricRows:
    """The rows of a run's metrics.jsonl; of rows written twice (after a resume) the newest counts.

    Attributes:
        train, epoch, eval, average, timeline: rows of each kind, in the order of steps.
    """

    def __init__(self, run: Path) -> None:
        newest = {
            (row["kind"], row["step"]): row
            for row in read_metrics(run)
            if row.keys() >= _KEYS.get(row["kind"], {"?"})
        }
        ordered = sorted(newest.values(), key=lambda row: float(row["step"]))
        self.train = [row for row in ordered if row["kind"] == "train"]
        self.epoch = [row for row in ordered if row["kind"] == "epoch"]
        self.eval = [row for row in ordered if row["kind"] == "eval"]
        self.average = [row for row in ordered if row["kind"] == "ema"]
        self.timeline = [row for row in ordered if row["kind"] == "timeline"]

    @property
    def time_s(self) -> float:
        """Of training, in seconds, without evaluations."""
        return float(sum(row["time_s"] for row in self.epoch))

    @property
    def images_per_s(self) -> float:
        """The mean of training."""
        num_images = sum((row["images_per_s"] or 0.0) * row["time_s"] for row in self.epoch)
        return float(num_images / max(self.time_s, 1e-9))


def points(rows: Sequence[dict[str, Any]], key: str) -> list[tuple[float, float | None]]:
    """(epoch, value) of each row that has `key`."""
    return [(float(row["epoch"]), row[key]) for row in rows if key in row]
