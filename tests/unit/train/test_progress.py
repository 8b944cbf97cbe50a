"""The progress lines: on a terminal, in a pipe, and when nobody reads any more."""

import io
import os
import pty
import re
import subprocess
import sys

import pytest
from rich.console import Console

from ddltrain.errors import RunError
from ddltrain.train.progress import Progress, make_console

PROGRAM = """
from ddltrain.train.progress import Progress, make_console
from types import SimpleNamespace
progress = Progress(2, make_console())
for epoch in range(2):
    progress.start_epoch(epoch, 300, 0)
    for step in range(1, 301):
        progress.update(step, 0.5, 80.0, 0.1, 100.0)
    progress.end_epoch(0.5, 80.0, 100.0, SimpleNamespace(top1=79.0))
    for _ in range(100):
        progress.message("a message that fills the buffers of the pipe " * 20)
progress.close()
"""


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Accuracy:
    top1 = 80.125


def train(progress: Progress, clock: Clock, num_epochs: int, step_s: float, num_steps: int = 100) -> None:
    for epoch in range(num_epochs):
        progress.start_epoch(epoch, num_steps, 0)
        for step in range(1, num_steps + 1):
            clock.now_s += step_s
            progress.update(step, 0.5123, 82.314, 0.08, 3120.4)
        progress.end_epoch(0.5123, 82.314, 3120.4, Accuracy())
    progress.close()


def run_plain(num_epochs: int, step_s: float) -> list[str]:
    out = io.StringIO()
    clock = Clock()
    train(Progress(num_epochs, Console(file=out, width=40), clock), clock, num_epochs, step_s)
    return out.getvalue().splitlines()


def screen_of(text: str) -> list[str]:
    """What is left on a terminal after `text`."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines, column = [""], 0
    for part in re.findall(r"\x1b\[[02]?K|\r|\n|[^\x1b\r\n]+", text):
        if part == "\n":
            lines.append("")
            column = 0
        elif part == "\r":
            column = 0
        elif part.startswith("\x1b"):
            lines[-1] = "" if "2" in part else lines[-1][:column]
        else:
            lines[-1] = lines[-1].ljust(column)[:column] + part + lines[-1][column + len(part) :]
            column += len(part)
    return lines


def watched_pipe(monkeypatch: pytest.MonkeyPatch, columns: int = 100) -> io.StringIO:
    """Makes standard output a pipe of which the launcher says that a person watches it."""
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("DDL_TERMINAL", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    return out


def test_plain_epoch_lines() -> None:
    lines = run_plain(2, step_s=0.01)
    assert lines == [
        "epoch 1/2  loss 0.512  top-1 82.31 %  val 80.12 %  3120 img/s  ETA 0:01",
        "epoch 2/2  loss 0.512  top-1 82.31 %  val 80.12 %  3120 img/s",
    ]


def test_plain_lines_come_at_most_every_ten_seconds() -> None:
    lines = run_plain(1, step_s=0.55)  # 55 s
    assert len([line for line in lines if "step" in line]) == 5
    assert lines[0].startswith(
        "epoch 1/1  step 19/100  loss 0.512  top-1 82.31 %  lr 0.08  3120 img/s  ETA 0:4"
    )
    assert not any(re.search(r"[\x00-\x1f\x7f]", line) for line in lines)


def test_eta_counts_the_steps_left_and_the_validations() -> None:
    out = io.StringIO()
    clock = Clock()
    progress = Progress(3, Console(file=out), clock)
    progress.start_epoch(0, 100, 0)
    clock.now_s += 60  # a slow first step must not count
    progress.update(1, 1.0, 1.0, 0.1, 1.0)
    for step, passed_s in ((2, 2.0), (100, 196.0)):
        clock.now_s += passed_s
        progress.update(step, 1.0, 1.0, 0.1, 1.0)
    clock.now_s += 50
    progress.end_epoch(1.0, 1.0, 1.0, None)
    # two epochs of 100 steps of 2 s and 50 s
    assert out.getvalue().splitlines()[-1].endswith("ETA 8:20")


def test_resume_in_mid_epoch_shows_the_right_step() -> None:
    out = io.StringIO()
    clock = Clock()
    progress = Progress(3, Console(file=out, width=200), clock)
    progress.start_epoch(2, 100, 90)
    for step in (91, 92):
        clock.now_s += 15
        progress.update(step, 1.0, 1.0, 0.1, 1.0)
    assert "epoch 3/3  step 92/100" in out.getvalue()
    assert "ETA 2:00 (run 2:00)" in out.getvalue()


def test_live_leaves_one_line_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    out = watched_pipe(monkeypatch)
    clock = Clock()
    console = make_console()
    train(Progress(2, console, clock), clock, 2, step_s=0.3)
    assert out.getvalue().count("\r") > 100
    lines = screen_of(out.getvalue())
    assert [line.rstrip() for line in lines] == [
        "epoch 1/2  loss 0.512  top-1 82.31 %  val 80.12 %  3120 img/s  ETA 0:30",
        "epoch 2/2  loss 0.512  top-1 82.31 %  val 80.12 %  3120 img/s",
        "",
    ]


def test_live_message_goes_above_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    out = watched_pipe(monkeypatch)
    progress = Progress(2, make_console())
    progress.start_epoch(0, 100, 0)
    progress.update(50, 0.5, 82.0, 0.1, 10.0)
    progress.message("saved [bold]step 50[/bold]")
    lines = screen_of(out.getvalue())
    assert lines[0] == "saved [bold]step 50[/bold]"
    assert lines[1].startswith("epoch 1/2 ━")
    assert len(lines) == 2
    progress.close()
    assert screen_of(out.getvalue())[2] == ""


@pytest.mark.parametrize("columns", [10, 40, 80, 100, 250])
def test_live_line_never_wraps(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    out = watched_pipe(monkeypatch, columns)
    progress = Progress(200, make_console())
    progress.start_epoch(122, 5005, 0)
    for step in (1, 2500, 5005):
        progress.update(step, 6.9078, 100.0, 0.00001, 123456.7)
        assert 0 < len(screen_of(out.getvalue())[0]) < columns
    assert ("━" in out.getvalue()) == (columns >= 100)


@pytest.mark.parametrize("columns", ["abc", "-5", "80x25"])
def test_wrong_number_of_columns_is_named(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("DDL_TERMINAL", columns)
    with pytest.raises(RunError, match=f"DDL_TERMINAL.*{columns}"):
        make_console()


def test_learning_rate_goes_before_the_eta_in_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    out = watched_pipe(monkeypatch, 80)
    clock = Clock()
    progress = Progress(8, make_console(), clock)
    progress.start_epoch(2, 390, 0)
    for step in (100, 101):
        clock.now_s += 0.25
        progress.update(step, 0.512, 82.31, 0.1, 3120.0)
    line = screen_of(out.getvalue())[0]
    assert line == "epoch 3/8 101/390  loss 0.512  top-1 82.31 %  3120 img/s  ETA 1:12 (run 9:20)"


def test_live_line_is_drawn_in_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[str] = []
    out = watched_pipe(monkeypatch)
    monkeypatch.setattr(out, "write", writes.append)
    progress = Progress(2, make_console())
    progress.start_epoch(0, 100, 0)
    progress.update(1, 0.5, 82.0, 0.1, 10.0)
    assert len(writes) == 1
    assert writes[0].startswith("\r")
    assert writes[0].endswith("\x1b[0K")


def test_pipe_without_a_watcher_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DDL_TERMINAL", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert not make_console().is_terminal


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_terminal_of_a_launcher_is_no_watcher(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        for name in ("DDL_TERMINAL", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "WORLD_SIZE"):
            monkeypatch.delenv(name, raising=False)
        assert make_console().is_terminal
        monkeypatch.setenv(variable, "2")
        assert not make_console().is_terminal
    os.close(master)


def test_closed_standard_output_does_not_end_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    clock = Clock()
    progress = Progress(3, make_console(), clock)
    out.close()
    train(progress, clock, 3, step_s=1.0)
    assert capsys.readouterr().err.count("WARNING: cannot write to standard output") == 1


def test_no_standard_output_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    clock = Clock()
    train(Progress(1, make_console(), clock), clock, 1, step_s=1.0)


def test_characters_that_the_output_lacks_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    Progress(1, make_console()).message("café \udcff")
    assert raw.getvalue() == b"caf? ?\n"


def environment(**values: str) -> dict[str, str]:
    unwanted = ("DDL_", "OMPI_", "PMI_", "SLURM_", "WORLD_SIZE", "NO_COLOR")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(unwanted)}
    return {**kept, "TERM": "xterm", "PYTHONUNBUFFERED": "", **values}


@pytest.mark.parametrize("columns", ["", "100"])
def test_broken_pipe_does_not_end_the_process(columns: str) -> None:
    read_end, write_end = os.pipe()
    command = [sys.executable, "-c", PROGRAM]
    environ = environment(DDL_TERMINAL=columns)
    with subprocess.Popen(
        command, stdout=write_end, stderr=subprocess.PIPE, env=environ, text=True
    ) as process:
        os.close(write_end)
        os.read(read_end, 10)
        os.close(read_end)
        assert process.stderr is not None
        errors = process.stderr.read()
    assert process.returncode == 0, errors
    assert errors.count("WARNING: cannot write to standard output") == 1
    assert errors.count("\n") == 1


def test_real_terminal_is_live() -> None:
    master, slave = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=slave, env=environment()) as process:
        os.close(slave)
        text = b""
        while True:
            try:
                text += os.read(master, 65536)
            except OSError:  # the other end is closed
                break
    os.close(master)
    assert process.returncode == 0
    assert b"\repoch" in re.sub(rb"\x1b\[[0-9;]*m", b"", text)


def test_loading_has_a_line_of_its_own_until_the_first_step_and_then_goes_along() -> None:
    out, clock = io.StringIO(), Clock()
    progress = Progress(1, Console(file=out, width=200), clock)
    progress.start_epoch(0, 100, 0)
    clock.now_s += 11
    progress.loading(1 << 20, 3 << 20, 2.0)
    for step in (1, 2):
        clock.now_s += 11
        progress.loading(2 << 20, 3 << 20, 4.0)
        progress.update(step, 0.5, 80.0, 0.1, 100.0)
    progress.loading(3 << 20, 3 << 20, 4.5)
    clock.now_s += 11
    progress.update(3, 0.5, 80.0, 0.1, 100.0)
    first, _, second, done, last = out.getvalue().splitlines()
    assert first == "loading 1.0 MiB of 3.0 MiB (0.5 MiB/s)"
    assert second.endswith("loading 2.0 MiB of 3.0 MiB (0.5 MiB/s)")
    assert done == "loaded 3.0 MiB of images in 4.5 s (0.7 MiB/s)"
    assert "load" not in last
