"""metrics.jsonl and TensorBoard events: what survives a resume, a kill and a full disk."""

import json
import math
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ddltrain.train.log import EVENTS_FOLDER, METRICS_FILE, MetricsLog, read_metrics


def train_row(step: int, **values: object) -> dict[str, object]:
    row = {"kind": "train", "step": step, "epoch": step / 10, "loss": 1.5, "top1": 50.0, "lr": 0.1}
    return {**row, "images_per_s": 100.0, "data_wait_s": 0.0, **values}


def write_steps(run: Path, resume_step: int | None, steps: range) -> None:
    log = MetricsLog(run, resume_step)
    for step in steps:
        log.write(train_row(step, loss=float(step)))
    log.close()


def steps_of(run: Path) -> list[int]:
    return [row["step"] for row in read_metrics(run)]


def test_rows_come_back_as_written(tmp_path: Path) -> None:
    rows = [train_row(20), {"kind": "eval", "step": 20, "epoch": 1, "loss": 0.5, "top1": 80.0, "count": 10}]
    log = MetricsLog(tmp_path, None)
    for row in rows:
        log.write(row)
    assert read_metrics(tmp_path) == rows  # before close: every row is out at once
    log.close()
    log.close()


def test_no_file_means_no_rows(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_not_finite_numbers_become_null(tmp_path: Path, value: float) -> None:
    log = MetricsLog(tmp_path, None)
    log.write(train_row(1, loss=value))
    log.close()

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    line = (tmp_path / METRICS_FILE).read_text()
    assert json.loads(line, parse_constant=refuse)["loss"] is None
    assert read_metrics(tmp_path)[0]["loss"] is None


def test_resume_drops_later_rows_and_goes_on(tmp_path: Path) -> None:
    write_steps(tmp_path, None, range(1, 11))
    write_steps(tmp_path, 5, range(6, 9))
    assert steps_of(tmp_path) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_new_run_drops_all_rows(tmp_path: Path) -> None:
    write_steps(tmp_path, None, range(1, 11))
    write_steps(tmp_path, None, range(1, 3))
    assert steps_of(tmp_path) == [1, 2]


@pytest.mark.parametrize("torn", [b'{"kind": "train", "st', b'{"kind": "train"}', b"\0\0\0\0", b"7", b"\xff"])
def test_torn_last_line_is_dropped(tmp_path: Path, torn: bytes) -> None:
    write_steps(tmp_path, None, range(1, 4))
    with open(tmp_path / METRICS_FILE, "ab") as file:
        file.write(torn)
    assert steps_of(tmp_path) == [1, 2, 3]
    write_steps(tmp_path, 3, range(4, 6))
    assert steps_of(tmp_path) == [1, 2, 3, 4, 5]
    lines = (tmp_path / METRICS_FILE).read_bytes().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4, 5]


def test_whole_last_line_without_its_end_is_kept(tmp_path: Path) -> None:
    write_steps(tmp_path, None, range(1, 4))
    path = tmp_path / METRICS_FILE
    path.write_bytes(path.read_bytes()[:-1])
    write_steps(tmp_path, 3, range(4, 5))
    assert steps_of(tmp_path) == [1, 2, 3, 4]


def test_killed_writer_loses_no_finished_row(tmp_path: Path) -> None:
    program = (
        "import sys, itertools\nfrom pathlib import Path\nfrom ddltrain.train.log import MetricsLog\n"
        "log = MetricsLog(Path(sys.argv[1]), None)\n"
        "for step in itertools.count(1):\n"
        "    log.write({'kind': 'train', 'step': step, 'note': 'x' * 5000})\n"
        "    print(step, flush=True)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(50):
            said = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        said = max([said, *map(int, writer.stdout.read().split("\n")[:-1])])
    steps = steps_of(tmp_path)
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= said
    write_steps(tmp_path, said, range(said + 1, said + 2))
    assert steps_of(tmp_path) == list(range(1, said + 2))


def test_full_disk_loses_a_row_says_so_once_and_goes_on(tmp_path: Path) -> None:
    warnings: list[str] = []
    log = MetricsLog(tmp_path, None, warn=warnings.append)
    log.write(train_row(1, note="x" * 200_000))
    path = tmp_path / METRICS_FILE
    size = path.stat().st_size
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, old[1]))  # room for a part of the next row
    try:
        log.write(train_row(2))
        log.write(train_row(3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert path.stat().st_size == size
    log.write(train_row(4))
    log.close()
    assert steps_of(tmp_path) == [1, 4]
    assert len(warnings) == 1
    assert str(path) in warnings[0]


def curves_of(run: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(run / EVENTS_FOLDER), size_guidance={"scalars": 0})
    events.Reload()
    names = events.Tags()["scalars"]
    return {name: [(point.step, point.value) for point in events.Scalars(name)] for name in names}


def test_tensorboard_curves_do_not_double_after_resume(tmp_path: Path) -> None:
    write_steps(tmp_path, None, range(1, 11))
    log = MetricsLog(tmp_path, 5)
    for step in range(6, 9):
        log.write(train_row(step, loss=100.0 + step))
    log.write({"kind": "eval", "step": 8, "epoch": 1, "loss": 0.5, "top1": 80.0, "top5": 95.0, "count": 10})
    log.close()
    curves = curves_of(tmp_path)
    assert curves["train/loss"] == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 106), (7, 107), (8, 108)]
    assert set(curves) == {
        *("train/loss", "train/top1", "lr", "images_per_s"),
        *("val/loss", "val/top1", "val/top5"),
    }
    assert curves["val/top5"] == [(8, 95.0)]


def test_each_opening_has_its_own_event_file(tmp_path: Path) -> None:
    write_steps(tmp_path, None, range(1, 3))
    write_steps(tmp_path, 2, range(3, 4))
    assert len(os.listdir(tmp_path / EVENTS_FOLDER)) == 2
