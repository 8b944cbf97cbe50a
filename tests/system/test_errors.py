"""What a user sees when something is wrong: one clear line before any training, or the traceback of the rank at fault."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import COMMAND_TIMEOUT_S, RECIPE, Command

END_TIMEOUT_S = 60


def check_one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    assert [word for word in words if word not in lines[0]] == []


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.epoch=2", ["train.epoch", '"train.epochs"']),
        ("train.epochs=0", ["train.epochs", "1 to 100000"]),
        ("train.batch_per_rank=1500", ["global batch", "1442", "train.batch_per_rank"]),
        ("model.name=resnet21", ["resnet21", "resnet20"]),
    ],
)
def test_a_wrong_recipe(
    command: Command, digits: Path, tmp_path: Path, ranks: int, override: str, words: list[str]
) -> None:
    done = command("train", RECIPE, f"data={digits}", override, "--run", tmp_path / "run", "--ranks", ranks)
    check_one_line(done, *words)


def test_no_data_no_recipe_and_no_checkpoint(command: Command, tmp_path: Path) -> None:
    check_one_line(command("train", RECIPE, "--run", tmp_path / "run"), "data=PATH")
    check_one_line(
        command("train", RECIPE, f"data={tmp_path}/none", "--run", tmp_path / "run", "--ranks", 2),
        "none",
        "prepare",
    )
    check_one_line(command("train", tmp_path / "no.toml"), "no.toml", "models/")
    check_one_line(command("evaluate", tmp_path), "no checkpoint in")
    check_one_line(command("evaluate", tmp_path / "x.pt", "--ranks", 2), "no checkpoint at")
    assert not (tmp_path / "run").exists()


def test_copies_without_mpi_are_refused(command: Command, digits: Path, tmp_path: Path) -> None:
    done = command("train", RECIPE, f"data={digits}", "--run", tmp_path / "run", SLURM_NTASKS="2")
    check_one_line(done, "SLURM_NTASKS=2", "MPI sees only this process")
    done = command("train", RECIPE, f"data={digits}", "--ranks", 3, OMPI_COMM_WORLD_SIZE="2")
    check_one_line(done, "--ranks 3", "OMPI_COMM_WORLD_SIZE")


def test_a_run_folder_is_not_overwritten_and_not_mixed(
    command: Command, digits: Path, tmp_path: Path
) -> None:
    words = (
        "train",
        RECIPE,
        f"data={digits}",
        "train.epochs=1",
        "data.image_size=8",
        "data.eval_crop=1",
        "--run",
        tmp_path / "run",
    )
    assert command(*words).returncode == 0
    check_one_line(command(*words, "--ranks", 2), "holds a run already", "--resume")
    check_one_line(
        command(*words, "optim.lr_base=0.3", "--resume"), "another recipe", "optim.lr_base: 0.2 -> 0.3"
    )
    done = command(*words, "train.batch_per_rank=16", "--resume")
    check_one_line(done, "global batch of 32", "16")


MODEL = """
import os, time, torch
from mpi4py import MPI
from torch import nn

class Breaks(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.layer = nn.Linear(192, num_classes)
        self.calls = 0
    def forward(self, images):
        self.calls += 1
        if self.calls == 5 and MPI.COMM_WORLD.rank == 1:
            {action}
        return self.layer(images.flatten(1))

def make(num_classes):
    return Breaks(num_classes)
"""


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (
            "raise ZeroDivisionError('deliberate')",
            ["[rank 1/3] Traceback", "[rank 1/3] ZeroDivisionError: deliberate"],
        ),
        ("os.kill(os.getpid(), 9)", ["rank 1", "signal 9"]),
        ("os._exit(7)", ["Exit code:    7"]),
        ("raise SystemExit(3)", ["[rank 1/3] SystemExit: 3"]),
    ],
)
def test_a_rank_that_dies_ends_the_job_on_all_ranks(
    digits: Path, tmp_path: Path, action: str, words: list[str]
) -> None:
    (tmp_path / "bad.py").write_text(MODEL.format(action=action))
    overrides = (f"data={digits}", "data.image_size=8", "data.eval_crop=1", "model.name=bad.py:make")
    job = subprocess.Popen(
        [sys.executable, "-m", "ddltrain", "train", str(RECIPE), *overrides, "--run", "run", "--ranks", "3"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _, errors = job.communicate(timeout=COMMAND_TIMEOUT_S)
    assert job.returncode not in (0, 2, 75)
    assert [word for word in words if word not in errors] == []
    until = time.monotonic() + END_TIMEOUT_S
    while processes_in(tmp_path) and time.monotonic() < until:
        time.sleep(0.2)
    assert processes_in(tmp_path) == []


def processes_in(folder: Path) -> list[str]:
    """Processes that have `folder` as their working folder."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if os.readlink(process / "cwd") == str(folder):
                    found.append(process.name)
            except OSError:
                continue  # it ended, or is not ours
    return found


def test_a_model_with_the_wrong_output_is_refused_before_training(
    command: Command, digits: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\ndef f(n):\n    return nn.Sequential(nn.Flatten(), nn.Linear(192, 3))\n"
    )
    words = (
        "train",
        RECIPE,
        f"data={digits}",
        "data.image_size=8",
        "data.eval_crop=1",
        "model.name=mine.py:f",
        "--ranks",
        2,
    )
    check_one_line(command(*words, cwd=tmp_path), "mine.py:f", "[images, 10]", "(1, 3)")


def test_a_loss_that_is_not_finite_ends_the_run_with_a_reason(
    command: Command, digits: Path, tmp_path: Path
) -> None:
    words = (
        "train",
        RECIPE,
        f"data={digits}",
        "optim.lr_base=1e30",
        "data.image_size=8",
        "data.eval_crop=1",
        "--ranks",
        2,
    )
    done = command(*words, "--run", tmp_path / "run")
    check_one_line(done, "is not finite at step", "rank 0 on host", "output of", "optim.lr_base")


def test_a_full_disk_ends_in_an_error_and_no_fragment(digits: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "ddltrain", "train", str(RECIPE), f"data={digits}", "train.epochs=2"]
    words += ["data.image_size=8", "data.eval_crop=1", "--run", str(tmp_path / "run")]
    limit_kib = 1000  # a file may not grow beyond this, and a checkpoint of this net is twice as large
    done = subprocess.run(
        ["bash", "-c", f'ulimit -f {limit_kib}; exec "$@"', "bash", *words],
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    assert "epoch 2/2" in done.stdout  # training went on
    assert done.stdout.count("WARNING: cannot write the checkpoint") == 2
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]  # before it Open MPI may complain of the limit, too
    assert last.startswith("error: cannot write the checkpoint of step 92")
    assert "--resume" in last
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []


def test_copies_that_mpi_did_not_join_leave_nothing_in_memory(command: Command) -> None:
    def segments() -> set[str]:
        """Those of worlds of one, which no other job on this machine has."""
        return {file.name for file in Path("/dev/shm").glob("sm_segment.*0000.0")}

    before = segments()
    done = command("doctor", PMI_SIZE="2", PMI_RANK="0")
    assert done.returncode == 2
    assert "PMI_SIZE=2, but MPI sees only this process" in done.stderr
    assert segments() <= before
