"""Every recipe in models/, scaled down by overrides as a user would give them, trains a few steps on 2 ranks.

All in one job, so that its start is paid once.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import REPOSITORY, Command
from PIL import Image

from ddltrain.comm.launch import find_mpiexec, mpiexec_command
from ddltrain.recipe import read_recipe

RECIPES = sorted((REPOSITORY / "models").glob("*/*.toml"))
TIMEOUT_S = 400

PROGRAM = """
import json, sys
from pathlib import Path
from rich.console import Console
from ddltrain.comm.world import fail, start_world
from ddltrain.recipe import read_recipe
from ddltrain.train.job import run_job

world = start_world()
try:
    for recipe, overrides, run in json.loads(sys.argv[1]):
        with open("/dev/null", "w") as nothing:
            status = run_job(read_recipe(Path(recipe), overrides), Path(run), False, world, Console(file=nothing), lambda: False)
        assert status == 0, recipe
except BaseException as error:
    fail(world, error)
    raise
"""


def overrides_for(file: Path, data: Path) -> list[str]:
    """What makes a recipe small; all else stays as it is."""
    recipe = read_recipe(file)
    words = [
        f"data={data}",
        "train.epochs=1",
        *(
            ["train.batch_per_rank=4"]
            if recipe.train.accumulate == 1
            else ["train.batch_per_rank=2", "train.accumulate=2"]
        ),
        "log.every_steps=1",
        "train.threads=1",
    ]
    words += [f"data.image_size={min(32, recipe.data.image_size)}", f"optim.lr_base_batch={256 * 32}"]
    if recipe.schedule.warmup_epochs:
        words.append("schedule.warmup_epochs=0.5")
    if recipe.data.progressive_size:
        words.append("data.progressive_size=[[0, 24]]")
    if recipe.bn.group > 1:
        words.append("bn.group=2")
    if recipe.train.precision == "fp16":
        words.append("train.precision=bf16")
    return words


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, command: Command) -> Path:
    """Two classes of noise that differ in color: 34 images to train on, 6 to evaluate."""
    folder = tmp_path_factory.mktemp("tiny")
    noise = np.random.default_rng(0)
    for split, count in (("train", 17), ("val", 3)):
        for label, color in (("red", (200, 60, 60)), ("blue", (60, 60, 200))):
            (folder / "images" / split / label).mkdir(parents=True)
            for number in range(count):
                pixels = np.clip(np.array(color) + noise.integers(-50, 50, (40, 36, 3)), 0, 255)
                Image.fromarray(pixels.astype(np.uint8)).save(
                    folder / "images" / split / label / f"{number}.png"
                )
    done = command("prepare", folder / "images", folder / "data")
    assert done.returncode == 0, done.stderr
    return folder / "data"


@pytest.fixture(scope="module")
def runs(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run folder for each recipe."""
    folder = tmp_path_factory.mktemp("runs")
    jobs = [(str(file), overrides_for(file, tiny), str(folder / name_of(file))) for file in RECIPES]
    mpiexec = find_mpiexec()
    version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False).stdout
    words, environment = mpiexec_command(mpiexec, version, 2)
    done = subprocess.run(
        [*words, sys.executable, "-c", PROGRAM, json.dumps(jobs)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=os.environ | environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return folder


def name_of(file: Path) -> str:
    return f"{file.parent.name}-{file.stem}"


@pytest.mark.parametrize("file", RECIPES, ids=name_of)
def test_a_recipe_trains(file: Path, runs: Path) -> None:
    run = runs / name_of(file)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if row["kind"] == "train"]
    assert len(losses) == 5
    assert np.isfinite(losses).all()
    assert len({row["lr"] for row in rows if row["kind"] == "train"}) > 1 or "hybrid" in file.read_text()
    state = torch.load(run / "checkpoints" / "best.pt", weights_only=True)
    assert all(value.isfinite().all() for value in state["model"].values())
    assert [row["count"] for row in rows if row["kind"] == "eval"] == [6]


@pytest.mark.parametrize("file", RECIPES, ids=name_of)
def test_a_card_names_its_recipe_with_a_source_and_what_was_run(file: Path) -> None:
    card = (file.parent / "README.md").read_text()
    row = next(line for line in card.splitlines() if line.startswith(f"| `{file.name}`"))
    assert "not" in row or "%" in row.rsplit("|", 2)[1]
    assert "## Launch" in card
    assert "## What differs" in card
    assert "arXiv" in card
