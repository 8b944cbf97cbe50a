import json
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pictures
import pytest
import torch
from PIL import Image

from ddltrain.bench import input_job
from ddltrain.bench import input_routes as routes
from ddltrain.bench.input_job import Options, Row, check_options, table, time_cases
from ddltrain.bench.input_pictures import Pictures, read_pictures
from ddltrain.bench.input_routes import Case
from ddltrain.cli.main import main
from ddltrain.errors import DataError
from ddltrain.input.decode import BatchDecoder, Ticket

pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")  # of torchvision


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos at two depths, a small PNG, a damaged file and one that is no picture."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "deep").mkdir()
    for number in range(6):
        place = folder / ("deep" if number % 2 else "") / f"{number}.jpg"
        place.write_bytes(pictures.jpeg(80 + number, 60 + 3 * number, (2, 2), number))
    Image.fromarray(pictures.picture(30, 20)).save(folder / "small.png")
    (folder / "cut.jpg").write_bytes(pictures.jpeg(80, 60)[:700])
    (folder / "notes.txt").write_text("not a picture")
    return folder


@pytest.fixture(scope="module")
def some(folder: Path) -> Pictures:
    return read_pictures(folder, 100, 0)


def test_pictures_of_a_folder(folder: Path, some: Pictures) -> None:
    assert len(some) == 7
    assert [line.split(":")[0] for line in some.left_out] == ["cut.jpg"]
    assert some.files[0] == (folder / "0.jpg").read_bytes()
    assert some.shapes[:2] == [(80, 60), (82, 66)]
    assert some.starts[-1] + some.sizes[-1] == len(some.block)
    assert "7 pictures" in some.describe()


def test_fewer_and_smaller_pictures(folder: Path) -> None:
    few = read_pictures(folder, 4, 32)
    assert len(few) + len(few.left_out) == 4
    assert all(min(shape) <= 32 for shape in few.shapes)
    assert [pictures.rgb(file).size for file in few.files] == few.shapes


def test_pictures_of_a_prepared_set(digits: Path) -> None:
    some = read_pictures(digits, 9, 0)
    assert some.shapes == [(8, 8)] * 9
    assert len(set(some.files)) > 1


def test_no_pictures(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no pictures that can be used"):
        read_pictures(tmp_path, 10, 0)
    with pytest.raises(DataError, match="no such folder"):
        read_pictures(tmp_path / "absent", 10, 0)


@pytest.mark.parametrize("phase", ["train", "eval"])
def test_routes_make_the_same_images(some: Pictures, phase: str) -> None:
    sampling = replace(routes.samplings(48)[phase], mode="exact")
    for place, file in enumerate(some.files):
        crop = sampling.draw(*some.shapes[place], routes.SEED, 1, place)
        by_pillow = routes.pillow_image(file, sampling, crop)
        data = torch.frombuffer(bytearray(file), dtype=torch.uint8)
        by_torchvision = routes.torchvision_image(data, sampling, crop).permute(1, 2, 0).numpy()
        record = some.block[some.starts[place] :][: some.sizes[place]]
        out = sampling.empty_batch(1)
        with BatchDecoder(1) as decoder:
            numbers = (np.array([value]) for value in (0, len(record), place))
            decoder.submit(record, *numbers, sampling, routes.SEED, 1, out).wait()
        ours = out[0].permute(1, 2, 0).numpy()
        assert pictures.largest_difference(ours, by_pillow) <= 1
        assert pictures.psnr(ours, by_torchvision) > 25  # which does not look over the edges of a window


def test_our_route_takes_every_picture_once(some: Pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "BATCH_IMAGES", 2)
    seen: list[int] = []
    with BatchDecoder(2) as decoder:
        submit = decoder.submit

        def watched(block: np.ndarray, *rest: Any) -> Ticket:
            seen.extend(rest[2].tolist())
            return submit(block, *rest)

        monkeypatch.setattr(decoder, "submit", watched)
        routes.own(some, routes.samplings(16)["train"], decoder)(0)
    assert seen == list(range(7))


def test_cases_are_timed_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_job, "_ROUND_S", 0.02)
    calls: list[tuple[str, int]] = []
    cases = {
        Case(name, "", "train", 1, "uint8"): lambda epoch, name=name: (
            calls.append((name, epoch)),
            sleep(0.025),
        )
        for name in ("pillow", "ddltrain")
    }
    rows = time_cases(cases, 10, 3)
    assert [name for name, _ in calls] == ["pillow"] * 2 + ["ddltrain"] * 2 + ["pillow", "ddltrain"] * 3
    assert [epoch for _, epoch in calls[4:]] == [0, 0, 1, 1, 2, 2]
    assert [row.route for row in rows] == ["pillow", "ddltrain"]
    assert all(0 < row.images_per_s < 401 for row in rows)


def test_the_table_compares_like_with_like() -> None:
    rows = [
        Row("pillow", "", "train", 1, "uint8", 100.0),
        Row("ddltrain", "fast", "train", 1, "float32", 450.0),
        Row("pillow", "", "eval", 2, "uint8", 50.0),
        Row("ddltrain", "exact", "eval", 2, "uint8", 150.0),
    ]
    lines = [line.split() for line in table(rows)[1:]]
    assert lines[1] == ["train", "1", "ddltrain", "fast", "float32", "450", "4.50"]
    assert lines[2] == ["eval", "2", "pillow", "-", "uint8", "50", "1.00"]
    assert lines[3][-1] == "3.00"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"phases": ["test"]}, "no test; there are train, eval"),
        ({"outputs": ["int8"]}, "no int8; there are uint8"),
        ({"num_rounds": 4}, "5 or more"),
        ({"threads": [0]}, "1 or more"),
        ({"json_file": Path("absent/rows.json")}, "folder does not exist"),
    ],
)
def test_wrong_options(wrong: dict[str, Any], message: str) -> None:
    right = Options(Path(), 224, 0, 10, [1], ["train"], ["uint8"], 5, None)
    check_options(right)
    with pytest.raises(DataError, match=message):
        check_options(replace(right, **wrong))


def test_a_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(input_job, "_ROUND_S", 0.001)
    file = tmp_path / "rows.json"
    outputs = list(input_job.OUTPUTS)
    options = Options(folder, 16, 0, 100, [1, 2], ["train", "eval"], outputs, 5, file)
    assert input_job.run_bench(options) == 0
    said = capsys.readouterr().out
    assert "left out: cut.jpg" in said
    assert "exact mean PSNR" in said
    rows = json.loads(file.read_text())["rows"]
    assert len(rows) == 2 * 2 * (2 + 2 * len(outputs))  # threads, phases; two others, and ours in two modes
    assert all(row["images_per_s"] > 0 for row in rows)
    others, ours = {("pillow", ""), ("torchvision", "")}, {("ddltrain", "fast"), ("ddltrain", "exact")}
    assert {(row["route"], row["mode"]) for row in rows} == others | ours
    assert len({tuple(row.values())[:-1] for row in rows}) == len(rows)


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench-input", str(folder), "--threads", "two"]) == 2
    assert "give whole numbers" in capsys.readouterr().err
