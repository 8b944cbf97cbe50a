import json
from pathlib import Path

import pytest

from ddltrain.errors import RunError
from ddltrain.recipe import Recipe, parse_recipe
from ddltrain.train.run_folder import RunFolder, run_facts

TEXT = """
[model]
name = "resnet20"
[train]
epochs = 3
batch_per_rank = 8
[optim]
lr_base = 0.1
[schedule]
kind = "cosine"
"""


def recipe(*overrides: str) -> Recipe:
    return parse_recipe(TEXT, "my.toml", overrides)


def start(path: Path) -> None:
    with RunFolder(path, recipe(), resume=False) as folder:
        folder.write_facts(recipe(), {"seed": 0})


def test_a_new_run_gets_a_folder_with_its_recipe_and_facts(tmp_path: Path) -> None:
    start(tmp_path / "a" / "b")
    assert parse_recipe((tmp_path / "a" / "b" / "recipe.toml").read_text(), "it") == recipe()
    assert json.loads((tmp_path / "a" / "b" / "run.json").read_text()) == {"seed": 0}


def test_a_folder_in_use_names_its_owner(tmp_path: Path) -> None:
    with (
        RunFolder(tmp_path / "run", recipe(), resume=False),
        pytest.raises(RunError, match=r"in use \(process \d+ on .*\)"),
    ):
        RunFolder(tmp_path / "run", recipe(), resume=True)
    with RunFolder(tmp_path / "run", recipe(), resume=False):  # free again
        pass


def test_a_folder_with_a_run_wants_resume(tmp_path: Path) -> None:
    start(tmp_path / "run")
    with pytest.raises(RunError, match="--resume"):
        RunFolder(tmp_path / "run", recipe(), resume=False)
    with RunFolder(tmp_path / "run", recipe(), resume=True):
        pass


def test_a_folder_with_other_files_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(RunError, match="other files"):
        RunFolder(tmp_path, recipe(), resume=True)


def test_another_recipe_is_refused_by_its_keys(tmp_path: Path) -> None:
    start(tmp_path / "run")
    with pytest.raises(RunError, match=r"optim\.lr_base: 0\.1 -> 0\.2; schedule\.kind: 'cosine' -> 'step'"):
        RunFolder(tmp_path / "run", recipe("optim.lr_base=0.2", "schedule.kind=step"), resume=True)


def test_a_run_from_before_a_key_goes_on_with_its_default(tmp_path: Path) -> None:
    start(tmp_path / "run")
    stored = tmp_path / "run" / "recipe.toml"
    older = stored.read_text().replace("error_feedback = false\n", "")
    assert older != stored.read_text()
    stored.write_text(older)
    with RunFolder(tmp_path / "run", recipe(), resume=True):
        pass
    with pytest.raises(RunError, match=r"comm\.error_feedback: False -> True"):
        RunFolder(tmp_path / "run", recipe("comm.error_feedback=true", "comm.wire=bf16"), resume=True)


@pytest.mark.parametrize("text", ["[model", "[models]\n"])
def test_a_stored_recipe_that_cannot_be_read_is_said(tmp_path: Path, text: str) -> None:
    start(tmp_path / "run")
    (tmp_path / "run" / "recipe.toml").write_text(text)
    with pytest.raises(RunError, match="is damaged, or of another version"):
        RunFolder(tmp_path / "run", recipe(), resume=True)


def test_what_does_not_touch_the_numbers_may_change(tmp_path: Path) -> None:
    start(tmp_path / "run")
    with RunFolder(
        tmp_path / "run",
        recipe("data=/new", "data.threads=3", "checkpoint.keep=9", "log.every_steps=1"),
        resume=True,
    ):
        pass


def test_a_file_in_the_way_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(RunError, match="cannot use the run folder"):
        RunFolder(tmp_path / "run", recipe(), resume=False)


def test_facts_tell_what_is_needed_to_run_it_again() -> None:
    facts = run_facts("Some MPI 1.0", 2, ["here"], recipe("train.seed=5"), {"data": "d"})
    assert facts["global_batch"] == 16
    assert facts["seed"] == 5
    assert {"torch", "commit", "command", "mpi", "python", "started"} <= set(facts)
    json.dumps(facts)
