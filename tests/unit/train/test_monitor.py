import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from ddltrain.input.sharded import ExchangeTimes
from ddltrain.train import monitor as module
from ddltrain.train.evaluate import Evaluation
from ddltrain.train.log import MetricsLog, read_metrics
from ddltrain.train.monitor import Rank0Monitor
from ddltrain.train.position import Position
from ddltrain.train.progress import Progress

EVALUATION = Evaluation(0.5, 8, 10, 10, np.zeros(10, int), np.zeros(10, int), np.ones(10, "f4"))


def fails(_: Evaluation) -> None:
    raise OSError(28, "No space left on device")


def make(run: Path, write_report: object = lambda _: None) -> tuple[Rank0Monitor, io.StringIO]:
    screen = io.StringIO()
    progress = Progress(3, Console(file=screen, width=200, highlight=False))
    log = MetricsLog(run, None, progress.message)
    return Rank0Monitor(run / "checkpoints", progress, log, 4, 2, write_report), screen  # type: ignore[arg-type]


def test_rows_hold_the_mean_over_the_images_since_the_last_row(tmp_path: Path) -> None:
    monitor, _ = make(tmp_path)
    monitor.start_epoch(0, 10, 0)
    for step in range(1, 9):
        images = 10 if step % 2 else 30
        monitor.step(
            Position(step=step, step_in_epoch=step),
            float(step),
            50.0 if step % 2 else 100.0,
            images,
            0.1,
            0.01,
            0.5,
        )
    monitor.close()
    rows = read_metrics(tmp_path)
    assert [row["step"] for row in rows] == [4, 8]
    assert rows[0]["loss"] == pytest.approx((1 * 10 + 2 * 30 + 3 * 10 + 4 * 30) / 80)
    assert rows[1]["top1"] == pytest.approx(87.5)
    assert rows[1]["images_per_s"] == pytest.approx(80 / 2.0)
    assert rows[1]["epoch"] == pytest.approx(0.8)


def test_an_exchange_is_told_and_logged(tmp_path: Path) -> None:
    monitor, screen = make(tmp_path)
    monitor.exchanged(ExchangeTimes(epoch=4, busy_s=8.0, waited_s=2.0))
    monitor.close()
    assert (
        screen.getvalue() == "exchange for epoch 5: 8.00 s, of which training waited 2.00 s (75 % hidden)\n"
    )
    (row,) = read_metrics(tmp_path)
    assert row == {"kind": "exchange", "step": 0, "epoch": 4, "exchange_s": 8.0, "waited_s": 2.0}


def test_a_full_disk_is_said_loudly_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor, screen = make(tmp_path, fails)
    position = Position(step=4, epoch=1, loss_sum=1.0, num_images=4, epoch_s=1.0)
    with monkeypatch.context() as patch:
        patch.setattr(module, "save_checkpoint", lambda *_: fails(EVALUATION))
        monitor.save({}, position)
    assert monitor.failed_save is not None
    monitor.start_epoch(0, 4, 0)
    monitor.end_epoch(position, 0.1, EVALUATION)
    monitor.save({"model": {}}, position)  # the next one is tried
    assert monitor.failed_save is None
    assert screen.getvalue().count("WARNING") == 2
    assert "No space left" in screen.getvalue()
    assert (tmp_path / "checkpoints" / "step-00000004.pt").exists()
