"""The commands as a user runs them, from data to a report, on one rank and many."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from conftest import RECIPE, REPOSITORY, Command
from PIL import Image

from ddltrain.comm.folder_lock import ALONE_OR_NEVER, FolderLock
from ddltrain.input._image import decode_rgb
from ddltrain.input.store import open_dataset
from ddltrain.train.use import load_model

QUICK = ("train.epochs=2", "data.image_size=8", "data.eval_crop=1", "data.crop_padding=1")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, command: Command, digits: Path) -> Path:
    """A short run on 2 ranks."""
    folder = tmp_path_factory.mktemp("runs") / "quick"
    done = command("train", RECIPE, f"data={digits}", *QUICK, "--run", folder, "--ranks", 2)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout  # nobody's terminal
    assert "epoch 2/2" in done.stdout
    assert str(folder / "report.html") in done.stdout
    return folder


def test_a_run_leaves_all_that_a_person_wants_to_see(run: Path) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows if row["kind"] == "eval"] == [1, 2]
    assert rows[-1]["count"] == 355
    facts = json.loads((run / "run.json").read_text())
    assert (facts["ranks"], facts["global_batch"], facts["seed"]) == (2, 64, 0)
    assert "train.epochs=2" in facts["command"]
    page = (run / "report.html").read_text()
    assert "<svg" in page
    assert "resnet20" in page
    assert list((run / "tensorboard").iterdir())
    state = torch.load(run / "checkpoints" / "best.pt", weights_only=True)
    assert state["model"]["conv1.weight"].shape == (16, 3, 3, 3)


def test_evaluation_counts_do_not_depend_on_the_number_of_ranks(
    run: Path, command: Command, tmp_path: Path
) -> None:
    figures = []
    for ranks in (1, 2, 3, 7):  # of 6 batches: one of 7 ranks has none
        file = tmp_path / f"{ranks}.json"
        done = command("evaluate", run, "--ranks", ranks, "--json", file)
        assert done.returncode == 0, done.stderr
        assert "top-1" in done.stdout
        figures.append(json.loads(file.read_text()))
    assert figures[0]["count"] == 355
    assert figures[0] == figures[1] == figures[2] == figures[3]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["correct1"] == figures[0]["correct1"]


def test_a_checkpoint_and_the_training_split_can_be_evaluated(
    run: Path, command: Command, tmp_path: Path
) -> None:
    done = command(
        "evaluate", run / "checkpoints" / "best.pt", "--split", "train", "--json", tmp_path / "it.json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "it.json").read_text())["count"] == 1442


def test_a_finished_run_says_so_when_resumed(run: Path, command: Command, digits: Path) -> None:
    done = command("train", RECIPE, f"data={digits}", *QUICK, "--run", run, "--ranks", 2, "--resume")
    assert done.returncode == 0, done.stderr
    assert "finished its 2 epochs already" in done.stdout


def test_a_users_own_model_trains_and_starts_from_weights(
    command: Command, digits: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "def tiny(num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.Dropout(0.2), nn.ReLU(), nn.Linear(32, num_classes))\n"
    )
    words = ("train", RECIPE, f"data={digits}", *QUICK, "model.name=mine.py:tiny")
    done = command(*words, "--run", "first", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    again = command(*words, "model.weights=first/checkpoints/best.pt", "--run", "second", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    rows = [
        json.loads((tmp_path / run / "metrics.jsonl").read_text().splitlines()[0])
        for run in ("first", "second")
    ]
    assert rows[1]["loss"] < rows[0]["loss"] - 0.3


def test_bf16_and_plain_layout_train(command: Command, digits: Path, tmp_path: Path) -> None:
    words = (
        "train",
        RECIPE,
        f"data={digits}",
        *QUICK,
        "train.epochs=1",
        "train.precision=bf16",
        "train.channels_last=false",
    )
    done = command(*words, "schedule.warmup_epochs=0", "--run", tmp_path / "run")
    assert done.returncode == 0, done.stderr


def test_a_schedule_is_shown_and_nothing_started(command: Command, digits: Path, tmp_path: Path) -> None:
    words = ("train", RECIPE, f"data={digits}", "--show-schedule", "--ranks", 2)
    done = command(*words, "schedule.kind=step", "schedule.milestones=[5]", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "peak rate 0.05 at a global batch of 64 on 2 rank(s), 23 steps an epoch, 345 in all" in done.stdout
    rows = [line.split()[0] for line in done.stdout.splitlines() if line.lstrip()[:1].isdigit()]
    assert rows[:8] == ["0", "1", "22", "23", "114", "115", "344", "0.05"]
    assert list(tmp_path.iterdir()) == []


def test_a_run_with_an_average_groups_and_a_timeline(command: Command, digits: Path, tmp_path: Path) -> None:
    words = (
        "train",
        RECIPE,
        f"data={digits}",
        *QUICK,
        "train.ema=0.9",
        "bn.group=2",
        "train.batch_per_rank=8",
    )
    words = (*words, "train.accumulate=4", "--timeline", "--run", tmp_path / "run")
    done = command(*words, "--ranks", 2)
    assert done.returncode == 0, done.stderr
    assert "average of the weights, top-1" in done.stdout
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    spans = set(rows[-1]["spans_s"])
    assert spans == {
        "data wait",
        "forward",
        "backward",
        "all-reduce",
        "optimizer",
        "evaluation",
        "checkpoint",
    }
    assert sum(rows[-1]["spans_s"].values()) <= rows[-1]["total_s"]
    events = json.loads((tmp_path / "run" / "timeline.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    steps = [event for event in events if event["name"] == "all-reduce"]
    assert len(steps) == 2 * 2 * 23  # ranks, epochs, steps of 64
    assert sum(event["name"] == "backward" for event in events) == 4 * len(steps)
    assert sum(event["name"] == "bucket 0" for event in events) == len(steps)
    assert 0 < rows[-1]["comm_exposed_s"] == rows[-1]["spans_s"]["all-reduce"]
    assert "Where the time went" in (tmp_path / "run" / "report.html").read_text()
    averages = [row for row in rows if row["kind"] == "ema"]
    done = command("evaluate", tmp_path / "run", "--ema", "--ranks", 3, "--json", tmp_path / "it.json")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "it.json").read_text())["correct1"] == averages[-1]["correct1"]
    # The same steps on another number of ranks; the groups do not fit it, and say so.
    again = command(*words, "--resume", "--ranks", 3)
    assert again.returncode == 2
    assert "bn.group = 2 does not divide the 3 ranks" in again.stderr


def test_no_average_is_said_so(run: Path, command: Command) -> None:
    done = command("evaluate", run, "--ema")
    assert done.returncode == 2
    assert "train.ema" in done.stderr


def test_a_compiled_model_trains_and_a_missing_compiler_is_said_so(
    command: Command, digits: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "def tiny(num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(192, num_classes))\n"
    )
    words = ("train", RECIPE, f"data={digits}", *QUICK, "model.name=mine.py:tiny", "train.compile=true")
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = command(*words, "--run", "run", cwd=tmp_path, **caches)
    assert done.returncode == 0, done.stderr
    state = torch.load(tmp_path / "run" / "checkpoints" / "best.pt", weights_only=True)["model"]
    assert list(state) == ["1.weight", "1.bias"]
    nowhere = {"CXX": "/nonexistent", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "empty")}
    done = command(*words, "--run", "other", cwd=tmp_path, **nowhere)
    assert done.returncode == 2
    assert "set train.compile=false" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["prepare", "train", "evaluate", "bench_train", "doctor", "launch"])
def test_help_needs_no_mpi_and_no_torch(name: str, tmp_path: Path) -> None:
    blocked = "import sys; sys.modules.update({'mpi4py': None, 'torch': None, 'numpy': None}); sys.argv = sys.argv[1:]; "
    script = REPOSITORY / "tools" / f"{name}.py"
    start = f"{blocked} import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", start, str(script), "-h"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout


def test_scripts_in_tools_are_the_subcommands(command: Command) -> None:
    for name in ("prepare", "train", "evaluate", "bench_train", "doctor", "launch"):
        script = subprocess.run(
            [sys.executable, str(REPOSITORY / "tools" / f"{name}.py"), "-h"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert script.stdout == command(name.replace("_", "-"), "-h").stdout


def test_the_readmes_way_to_use_a_model_works(run: Path, tmp_path: Path) -> None:
    readme = (REPOSITORY / "README.md").read_text()
    code = readme.split("```python\n")[1].split("```")[0]
    code = code.replace("runs/pets/checkpoints/best.pt", str(run / "checkpoints" / "best.pt"))
    Image.new("RGB", (9, 7), "white").save(tmp_path / "photo.jpg")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in {str(digit) for digit in range(10)}


def test_the_loader_works_in_a_loop_of_ones_own(digits: Path, tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / "loader.md").read_text()
    code = text.split("```python\n")[1].split("```")[0].replace("data/pets", str(digits))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    heads = [line.split(":")[0] for line in done.stdout.splitlines()]
    assert heads == ["epoch 1", "epoch 2", "epoch 3"]


def test_a_model_in_use_gives_the_evaluations_predictions(
    run: Path, digits: Path, command: Command, tmp_path: Path
) -> None:
    done = command("evaluate", run / "checkpoints" / "best.pt", "--json", tmp_path / "it.json")
    assert done.returncode == 0, done.stderr
    model, transform, classes = load_model(run / "checkpoints" / "best.pt")
    val = open_dataset(digits).splits["val"]
    images = torch.stack(
        [transform(Image.fromarray(decode_rgb(val[place].image))) for place in range(len(val))]
    )
    with torch.inference_mode():
        right = (model(images).argmax(dim=1).numpy() == val.labels).sum()
    assert right == json.loads((tmp_path / "it.json").read_text())["correct1"]
    assert classes == tuple("0123456789")


@pytest.mark.parametrize("ranks", [1, 2])
def test_nothing_is_left_in_shared_memory(run: Path, command: Command, tmp_path: Path, ranks: int) -> None:
    (tmp_path / "memory").mkdir()
    ours = {"OMPI_MCA_btl_sm_backing_directory": str(tmp_path / "memory")} if ranks == 1 else {}
    before = set(os.listdir("/dev/shm"))
    done = command("evaluate", run, "--ranks", ranks, **ours)
    assert done.returncode == 0, done.stderr
    assert os.listdir(tmp_path / "memory") == []
    assert [name for name in set(os.listdir("/dev/shm")) - before if _is_left(name)] == []


def _is_left(name: str) -> bool:
    """Whether something in shared memory is of a job of ours, and of none that still runs."""
    if not name.startswith("ddltrain"):
        return False
    with suppress(OSError), FolderLock(Path("/dev/shm", name), ALONE_OR_NEVER):
        return True
    return False
