"""Runs side by side: tables and drawing, from files as a run writes them."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ddltrain.cli.main import main
from ddltrain.train.compare import differences, drawing, read_run, results

RECIPE = """
[model]
name = "resnet20"
[data]
path = "{path}"
[train]
epochs = 3
batch_per_rank = 8
[optim]
lr_base = {rate}
[schedule]
kind = "cosine"
"""
SVG = "{http://www.w3.org/2000/svg}"


def make_run(folder: Path, rate: float = 0.1, top1: list[float | None] | None = None, ranks: int = 2) -> Path:
    folder.mkdir()
    rows: list[dict[str, object]] = []
    for index, accuracy in enumerate(top1 if top1 is not None else [50.0, 70.0, 60.0]):
        common = {"step": 10 * (index + 1), "epoch": index + 1, "loss": 2.0 / (index + 1)}
        rows.append(
            {
                "kind": "epoch",
                **common,
                "top1": 40.0,
                "lr": rate,
                "images_per_s": 100.0 + 200 * index,
                "time_s": 60.0,
            }
        )
        counts = {"top5": 90.0, "correct1": 5, "correct5": 9, "count": 10}
        rows.append({"kind": "eval", **common, "top1": accuracy, **counts})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "recipe.toml").write_text(RECIPE.format(path=folder, rate=rate))
    (folder / "run.json").write_text(json.dumps({"ranks": ranks}))
    return folder


def test_results(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "one"))
    assert run.name == str(tmp_path / "one")
    assert results(run) == ["3", "60.00 %", "70.00 %", "0.6667", "3.0", "300"]
    blank = read_run(make_run(tmp_path / "two", top1=[None]))
    assert results(blank)[1:3] == ["-", "-"]


def test_differences_leave_out_where_the_data_lie(tmp_path: Path) -> None:
    runs = [read_run(make_run(tmp_path / "a")), read_run(make_run(tmp_path / "b", rate=0.4, ranks=8), "slow")]
    assert differences(runs) == [("optim.lr_base", [0.1, 0.4]), ("ranks", [2, 8])]
    assert runs[1].name == "slow"
    assert differences(runs[:1]) == []


def test_a_key_that_is_newer_than_a_run_is_no_difference(tmp_path: Path) -> None:
    old, new = make_run(tmp_path / "old"), make_run(tmp_path / "new")
    with (new / "recipe.toml").open("a") as file:
        file.write("[comm]\nerror_feedback = false\n")
    assert differences([read_run(old), read_run(new)]) == []


def test_accuracy_has_an_axis_up_to_100(tmp_path: Path) -> None:
    picture = drawing([read_run(make_run(tmp_path / "run", top1=[0.1, 50.0, 99.0]))])
    assert all(f">{tick}<" in picture for tick in (20, 40, 60, 80, 100))  # not logarithmic


def test_drawing_has_a_line_a_run_and_their_names(tmp_path: Path) -> None:
    names = ["a & b", "c", "no accuracy"]
    runs = [
        read_run(make_run(tmp_path / str(index), top1=[None] if index == 2 else None), name)
        for index, name in enumerate(names)
    ]
    picture = ElementTree.fromstring(drawing(runs))
    texts = [element.text for element in picture.iter(f"{SVG}text")]
    assert {*names, "Validation top-1 (%)", "Training loss"} <= set(texts)
    lines = [element.get("class") for element in picture.iter(f"{SVG}path")]
    assert lines == ["curve run0", "curve run1", "curve run0", "curve run1"]  # one epoch is a dot
    assert ElementTree.fromstring(drawing(runs[2:])) is not None


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = make_run(tmp_path / "one"), make_run(tmp_path / "x=1", rate=0.4)
    out = tmp_path / "curves.svg"
    assert main(["compare", f"{one}=lr=0.1", str(other), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    for words in ("lr=0.1", "x=1", "70.00 %", "optim.lr_base", "0.4", "wrote"):
        assert words in printed
    assert ElementTree.parse(out).getroot().tag == f"{SVG}svg"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: (run / "metrics.jsonl").unlink(), "no run is there"),
        (lambda run: (run / "metrics.jsonl").write_text(""), "has not ended an epoch yet"),
        (lambda run: (run / "recipe.toml").write_text("["), "cannot read the recipe"),
        (lambda run: (run / "recipe.toml").write_text("epochs = 3"), "epochs"),
        (lambda run: (run / "recipe.toml").unlink(), "no recipe at"),
        (lambda run: (run / "run.json").write_text("[]"), "no JSON object"),
    ],
)
def test_what_is_no_run(
    tmp_path: Path, spoil: object, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run")
    assert callable(spoil)
    spoil(run)
    assert main(["compare", str(run)]) == 2
    assert message in capsys.readouterr().err


def test_too_many_and_a_drawing_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(make_run(tmp_path / "run"))
    assert main(["compare", *[run] * 9]) == 2
    assert "at most 8" in capsys.readouterr().err
    assert main(["compare", run, "--out", str(tmp_path / "no" / "c.svg")]) == 2
    assert "cannot be written: No such file" in capsys.readouterr().err
