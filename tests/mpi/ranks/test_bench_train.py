"""The training benchmark: on one rank beside a plain loop, on more beside DistributedDataParallel too."""

import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from ddltrain.bench.train_step import Options, run_bench
from ddltrain.comm.world import World
from ddltrain.errors import RecipeError
from ddltrain.recipe import Recipe, parse_recipe

MODEL = """
from torch import nn
def tiny(num_classes):
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, num_classes))
"""
RECIPE = """
[model]
name = "{model}:tiny"
[data]
image_size = 6
[train]
epochs = 1
batch_per_rank = 4
accumulate = 2
threads = 1
precision = "bf16"
[optim]
lr_base = 0.1
[schedule]
kind = "cosine"
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    (tmp_path / "mine.py").write_text(MODEL)
    return parse_recipe(RECIPE.format(model=tmp_path / "mine.py"), "test")


def test_all_contenders_are_timed_in_one_run(recipe: Recipe, world: World, tmp_path: Path) -> None:
    screen, file = io.StringIO(), tmp_path / "bench.json"
    options = Options(num_classes=5, num_steps=2, num_rounds=5, json_file=file)
    console = Console(file=screen, width=200)
    assert run_bench(recipe, options, world, console, lambda: False) == 0  # type: ignore[arg-type]
    torch.set_num_threads(1)
    if world.rank:
        assert not file.exists()
        return
    rows = {row["contender"]: row for row in json.loads(file.read_text())}
    assert list(rows) == (["ours", "plain"] if world.world_size == 1 else ["ours", "plain", "ddp"])
    for name, row in rows.items():
        assert len(row["rounds_s"]) == 5
        assert min(row["rounds_s"]) <= row["step_s"] <= max(row["rounds_s"])
        assert row["images_per_s"] == pytest.approx(8 * world.world_size / row["step_s"])
        ratios = sorted(a / b for a, b in zip(row["rounds_s"], rows["ours"]["rounds_s"], strict=True))
        assert row["ratio"] == pytest.approx(ratios[2])
        assert f"{name}  " in screen.getvalue()


def test_few_rounds_and_no_folder_are_refused(recipe: Recipe, world: World, tmp_path: Path) -> None:
    for options, word in (
        (Options(5, 1, 4, None), "-n takes 5"),
        (Options(5, 1, 5, tmp_path / "none" / "x.json"), "its folder"),
    ):
        with pytest.raises(RecipeError, match=word):
            run_bench(recipe, options, world, Console(file=io.StringIO()), lambda: False)  # type: ignore[arg-type]
