"""The figures of a run, written while it trains: metrics.jsonl for programs, TensorBoard events for people.

metrics.jsonl holds one JSON object a line. Kinds of row, told apart by `kind`:

    train  step, epoch (a fraction counts), loss, top1, lr, images_per_s, data_wait_s    every few steps
    epoch  step, epoch (finished epochs), loss, top1, lr, images_per_s, time_s,          once an epoch
           comm_s, comm_exposed_s
    eval   step, epoch, loss, top1, top5, correct1, correct5, count                      after a validation
    ema    the same of the average of the weights, where the recipe asks for it
    exchange  step, epoch (for which), exchange_s, waited_s (by training)                where hosts share the images
    timeline  step, total_s, spans_s: {name: seconds}, comm_s, comm_exposed_s            at the end, with --timeline

Of the steps of an epoch, which took time_s, rank 0 had an all-reduce of gradients under way for comm_s, and did nothing but wait for it
for comm_exposed_s.

A number that is not finite (a loss that has blown up) is written as null, which every JSON reader accepts.

Neither a killed process nor a full disk may cost more than the row being written: a line goes to the kernel
in one call, a torn last line is dropped when the file is opened again, and a row that cannot be written is
lost, said once, and the next row is tried.
"""

import io
import json
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

METRICS_FILE = "metrics.jsonl"
EVENTS_FOLDER = "tensorboard"

# (kind, key) of a row -> name of its curve in TensorBoard
_CURVES = {
    ("train", "loss"): "train/loss",
    ("train", "top1"): "train/top1",
    ("train", "lr"): "lr",
    ("train", "images_per_s"): "images_per_s",
    ("eval", "loss"): "val/loss",
    ("eval", "top1"): "val/top1",
    ("eval", "top5"): "val/top5",
    ("ema", "loss"): "val/ema_loss",
    ("ema", "top1"): "val/ema_top1",
}


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Reads the rows of a run's metrics.jsonl, oldest first.

    A line that is not a whole row (the process was killed, or the host went down, while writing it) is left
    out.

    Args:
        run: the run folder.

    Returns:
        The rows; none when the file does not exist. A value that was not finite is None.
    """
    path = run / METRICS_FILE
    if not path.exists():
        return []
    rows = (_parse(line) for line in path.read_bytes().split(b"\n"))
    return [row for row in rows if row is not None]


class MetricsLog:
    """Writes the rows of one run; rank 0 alone has one."""

    def __init__(self, run: Path, resume_step: int | None, warn: Callable[[str], None] | None = None) -> None:
        """Opens metrics.jsonl and a new TensorBoard event file.

        Args:
            run: the run folder, which exists.
            resume_step: the step of the checkpoint that training goes on from: later rows are dropped, for
                they are going to be written again. None for a new run: rows of an earlier one are dropped.
            warn: takes a message for the user when a row is lost; standard error by default.

        Raises:
            OSError: the files cannot be opened (no permission, no such folder).
        """
        self._warn = warn or _print_to_stderr
        self._warned = False
        self._closed = False
        path = run / METRICS_FILE
        _keep_rows_up_to(path, resume_step)
        self._lines = _AppendFile(path)
        first_step = 0 if resume_step is None else resume_step + 1
        self._events = _AppendFile(_new_events_path(run / EVENTS_FOLDER))
        for record in _opening_events(first_step):
            self._append(self._events, record)

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends one row to both logs.

        Args:
            row: JSON values by key, with `kind` and `step` among them.
        """
        finite = {key: None if _is_not_finite(value) else value for key, value in row.items()}
        line = json.dumps(finite, allow_nan=False) + "\n"
        self._append(self._lines, line.encode())
        values = {
            name: float(row[key])
            for (kind, key), name in _CURVES.items()
            if row["kind"] == kind and key in row
        }
        if values:
            self._append(self._events, _scalars_event(int(row["step"]), values))

    def close(self) -> None:
        """Closes both files; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._lines.close()
            self._events.close()

    def _append(self, file: "_AppendFile", data: bytes) -> None:
        try:
            file.append(data)
        except OSError as error:
            if not self._warned:
                self._warned = True
                self._warn(
                    f"WARNING: cannot write {file.path}: {error.strerror}. Training goes on, but rows of the "
                    "log are lost until this is mended (said only once)."
                )


class _AppendFile:
    """A file that grows by whole pieces: what could be written only in part is taken back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - open as long as the run
        self._length = self._file.seek(0, os.SEEK_END)

    def append(self, data: bytes) -> None:
        """Writes all of `data`, or nothing.

        Raises:
            OSError: there is no room, or the device fails.
        """
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._file.truncate(self._length)
            raise
        self._length += len(data)

    def close(self) -> None:
        self._file.close()


def _keep_rows_up_to(path: Path, resume_step: int | None) -> None:
    """Drops torn lines and the rows after `resume_step` (all rows if None) in one atomic replacement."""
    if not path.exists():
        return
    old = path.read_bytes()
    kept = []
    for line in old.split(b"\n"):
        row = _parse(line)
        if row is not None and resume_step is not None and row["step"] <= resume_step:
            kept.append(line + b"\n")
    new = b"".join(kept)
    if new != old:
        temporary = path.with_name(path.name + ".tmp")
        with open(temporary, "wb") as file:
            file.write(new)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


def _parse(line: bytes) -> dict[str, Any] | None:
    """The row in a line; None if the line is empty or not a whole row."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and "kind" in row and isinstance(row.get("step"), int) else None


def _is_not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _print_to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _new_events_path(folder: Path) -> Path:
    """A new file name in the form TensorBoard looks for; it reads files in the order of their names."""
    folder.mkdir(exist_ok=True)
    now_us = time.time_ns() // 1000
    return (
        folder
        / f"events.out.tfevents.{now_us // 1_000_000:010d}.{now_us}.{socket.gethostname()}.{os.getpid()}"
    )


def _opening_events(first_step: int) -> list[bytes]:
    """The version mark, and the mark that makes TensorBoard forget older points from `first_step` on."""
    # TensorBoard's messages and record format, but not its writer, whose thread dies when the disk is full.
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    version = Event(wall_time=time.time(), step=first_step, file_version="brain.Event:2")
    start = Event(wall_time=time.time(), step=first_step, session_log=SessionLog(status=SessionLog.START))
    return [_framed(version.SerializeToString()), _framed(start.SerializeToString())]


def _scalars_event(step: int, values: Mapping[str, float]) -> bytes:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    points = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
    event = Event(wall_time=time.time(), step=step, summary=Summary(value=points))
    return _framed(event.SerializeToString())


def _framed(data: bytes) -> bytes:
    """One TensorBoard record around `data`: length, checksum, data, checksum."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    buffer = io.BytesIO()
    RecordWriter(buffer).write(data)
    return buffer.getvalue()
