"""Runs that are killed, stopped and resumed end with the bits of a run that was left alone."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import COMMAND_TIMEOUT_S, RECIPE

OVERRIDES = (
    "train.epochs=3",
    "data.image_size=8",
    "data.eval_crop=1",
    "checkpoint.every_steps=7",
    "log.every_steps=1",
)


def start(digits: Path, run: Path, *flags: str) -> subprocess.Popen[str]:
    words = ["train", str(RECIPE), f"data={digits}", *OVERRIDES, "--run", str(run), "--ranks", "2", *flags]
    return subprocess.Popen(
        [sys.executable, "-m", "ddltrain", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(job: subprocess.Popen[str]) -> tuple[int, str]:
    output, errors = job.communicate(timeout=COMMAND_TIMEOUT_S)
    return job.returncode, output + errors


def wait_for_step(run: Path, step: int) -> None:
    """Return once the log has a row of that step."""
    until = time.monotonic() + COMMAND_TIMEOUT_S
    while time.monotonic() < until:
        if (run / "metrics.jsonl").exists() and f'"step": {step},' in (run / "metrics.jsonl").read_text():
            return
        time.sleep(0.02)
    raise TimeoutError(f"step {step} of {run} did not come")


def ranks_of(run: Path) -> list[int]:
    """Process numbers of the ranks of a run."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it ended
            is_python = (
                words[0].endswith((b"python", b"python3")) or b"python" in words[0].rsplit(b"/", 1)[-1]
            )
            if is_python and str(run).encode() in words and b"--ranks" not in words:
                found.append(int(process.name))
    return sorted(found)


def model_of(run: Path) -> dict[str, torch.Tensor]:
    newest = max((run / "checkpoints").glob("step-*.pt"))
    state: dict[str, torch.Tensor] = torch.load(newest, weights_only=True)["model"]
    return state


def losses_of(run: Path) -> dict[int, float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [row["step"] for row in rows if row["kind"] == "train"]
    assert steps == sorted(set(steps))  # none twice
    return {row["step"]: row["loss"] for row in rows if row["kind"] == "train"}


@pytest.fixture(scope="module")
def uninterrupted(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "whole"
    status, output = finish(start(digits, run))
    assert status == 0, output
    return run


def check_same(run: Path, uninterrupted: Path) -> None:
    ours, theirs = model_of(run), model_of(uninterrupted)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    assert losses_of(run) == losses_of(uninterrupted)


def test_the_same_command_gives_the_same_bits(digits: Path, tmp_path: Path, uninterrupted: Path) -> None:
    status, output = finish(start(digits, tmp_path / "run"))
    assert status == 0, output
    check_same(tmp_path / "run", uninterrupted)


def test_a_rank_killed_in_mid_epoch(digits: Path, tmp_path: Path, uninterrupted: Path) -> None:
    run = tmp_path / "run"
    job = start(digits, run)
    wait_for_step(run, 32)
    os.kill(ranks_of(run)[-1], signal.SIGKILL)
    status, output = finish(job)
    assert status not in (0, 75)
    assert "signal 9" in output
    newest = max((run / "checkpoints").glob("step-*.pt"))
    status, output = finish(start(digits, run, "--resume"))
    assert status == 0, output
    assert f"going on at step {int(newest.stem[5:])}" in output
    check_same(run, uninterrupted)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_command_saves_and_stops(
    digits: Path, tmp_path: Path, uninterrupted: Path, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    job = start(digits, run)
    wait_for_step(run, 30)
    job.send_signal(number)
    status, output = finish(job)
    assert status == 75, output
    stopped_at = int(max((run / "checkpoints").glob("step-*.pt")).stem[5:])
    assert f"stopped at step {stopped_at}" in output
    assert stopped_at >= 30
    status, output = finish(start(digits, run, "--resume"))
    assert status == 0, output
    check_same(run, uninterrupted)


def test_a_signal_to_one_rank_stops_all(digits: Path, tmp_path: Path, uninterrupted: Path) -> None:
    run = tmp_path / "run"
    job = start(digits, run)
    wait_for_step(run, 10)
    os.kill(ranks_of(run)[-1], signal.SIGTERM)
    status, output = finish(job)
    assert status == 75, output
    # A damaged newest checkpoint is named, and the one before it used.
    newest = max((run / "checkpoints").glob("step-*.pt"))
    with newest.open("r+b") as file:
        file.seek(3000)
        file.write(b"damage")
    status, output = finish(start(digits, run, "--resume"))
    assert status == 0, output
    assert f"{newest.name} is damaged" in output
    check_same(run, uninterrupted)


def test_killing_the_command_itself_leaves_no_rank_behind(digits: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = start(digits, run)
    wait_for_step(run, 5)
    job.kill()
    finish(job)
    until = time.monotonic() + COMMAND_TIMEOUT_S
    while ranks_of(run) and time.monotonic() < until:
        time.sleep(0.1)
    assert ranks_of(run) == []


def test_a_run_goes_on_with_another_number_of_ranks_and_the_same_global_batch(
    digits: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    job = start(digits, run)
    wait_for_step(run, 30)
    job.send_signal(signal.SIGTERM)
    assert finish(job)[0] == 75
    status, output = finish(start(digits, run, "--resume", "--ranks", "3"))
    assert status == 2
    assert "global batch of 64 on 2 ranks, here it is 96 on 3: set train.global_batch=64" in output
    status, output = finish(start(digits, run, "--resume", "--ranks", "3", "train.global_batch=64"))
    assert status == 0, output
    assert max(losses_of(run)) == 69
