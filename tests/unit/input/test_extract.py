"""Extracting: files of the same pictures come back, under safe names, and nothing is overwritten."""

import os
from pathlib import Path

import numpy as np
import pytest
from conftest import Command
from PIL import Image

from ddltrain.errors import DataError
from ddltrain.input import _image
from ddltrain.input.build import PrepareOptions
from ddltrain.input.extract import extract_all, extract_keys
from ddltrain.input.prepare import prepare
from ddltrain.input.record import Record
from ddltrain.input.shards import StoreWriter
from ddltrain.input.splits import SplitOptions
from ddltrain.input.store import Dataset, Store, open_dataset

GENERATOR = np.random.default_rng(0)


def picture(size: int) -> Image.Image:
    return Image.fromarray(GENERATOR.integers(0, 256, (6, 6, 3), np.uint8)).resize((size, size))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("extract") / "source"
    for split in ("train", "val"):
        for label in ("a", "b c"):
            (root / split / label / "deep").mkdir(parents=True)
            picture(100).save(root / split / label / "photo.JPEG", quality=90)
            picture(90).convert("L").save(root / split / label / "gray.jpg")
            picture(20).save(root / split / label / "small.png")
            picture(21).convert("L").save(root / split / label / "deep" / "small.gif")
            picture(99).save(root / split / label / "large.bmp")
    return root


@pytest.fixture(scope="module")
def data(source: Path) -> Path:
    prepare(str(source), source.parent / "out", PrepareOptions(SplitOptions()), lambda *_: None)
    return source.parent / "out"


def named(folder: Path, records: list[Record], classes: tuple[str, ...]) -> Dataset:
    """A data set of records with names of any kind."""
    folder.mkdir()
    with StoreWriter(folder, "train") as writer:
        for record in records:
            writer.append(record)
    stores = {"train": Store([folder / shard.file for shard in writer.shards]), "val": Store([])}
    return Dataset(folder, classes, "fingerprint", stores, {})


def test_all_images_come_back_in_their_folders(source: Path, data: Path, tmp_path: Path) -> None:
    seen = []
    assert extract_all(open_dataset(data), tmp_path / "all", lambda *state: seen.append(state)) == 20
    assert seen[-1] == ("val", 10, 10)
    files = {str(path.relative_to(tmp_path / "all")) for path in (tmp_path / "all").rglob("*.*")}
    names = ("photo.JPEG", "gray.jpg", "small.png", "deep__small.png", "large.jpg")
    assert files == {
        f"{split}/{label}/{name}" for split in ("train", "val") for label in ("a", "b c") for name in names
    }
    for split in ("train", "val"):
        original, extracted = source / split / "b c", tmp_path / "all" / split / "b c"
        for name in ("photo.JPEG", "gray.jpg", "small.png"):
            with Image.open(original / name) as first, Image.open(extracted / name) as second:
                assert (first.format, first.mode) == (second.format, second.mode)
                assert first.tobytes() == second.tobytes()
        with (
            Image.open(original / "deep/small.gif") as first,
            Image.open(extracted / "deep__small.png") as second,
        ):
            assert first.convert("RGB").tobytes() == second.convert("RGB").tobytes()
    assert os.listdir(tmp_path) == ["all"]


def test_what_is_extracted_gives_the_same_records_again(data: Path, tmp_path: Path) -> None:
    dataset = open_dataset(data)
    extract_all(dataset, tmp_path / "all", lambda *_: None)
    prepare(str(tmp_path / "all"), tmp_path / "again", PrepareOptions(SplitOptions()), lambda *_: None)
    again = open_dataset(tmp_path / "again")
    assert again.classes == dataset.classes
    for split, store in dataset.splits.items():
        assert sorted((r.label, r.image) for r in again.splits[split]) == sorted(
            (r.label, r.image) for r in store
        )


def test_keys_are_numbers_or_names(data: Path, tmp_path: Path) -> None:
    dataset = open_dataset(data)
    wanted = dataset.splits["train"][3]
    files = extract_keys(dataset, ["train/3", "val/b c/small.png", wanted.name], tmp_path)
    assert [str(file.relative_to(tmp_path)) for file in files] == [wanted.name, "val/b c/small.png"]
    for key in ("train/10", "val/nothing.jpg", "test/0", "train/a"):
        with pytest.raises(
            DataError, match=f"no record {key}; keys are names of records, or train/0 to train/9"
        ):
            extract_keys(dataset, ["train/0", key], tmp_path / "more")
    assert not (tmp_path / "more").exists()


def test_nothing_is_overwritten(data: Path, tmp_path: Path) -> None:
    dataset = open_dataset(data)
    (file,) = extract_keys(dataset, ["val/0"], tmp_path / "d")
    file.write_bytes(b"mine")
    with pytest.raises(DataError, match=r"exists already; choose another folder"):
        extract_keys(dataset, ["val/0"], tmp_path / "d")
    with pytest.raises(DataError, match=r"d: exists already; choose a folder that is new or empty"):
        extract_all(dataset, tmp_path / "d", lambda *_: None)
    assert file.read_bytes() == b"mine"
    (tmp_path / "empty").mkdir()
    assert extract_all(dataset, tmp_path / "empty", lambda *_: None) == 20


def test_no_name_leads_out_of_the_folder(tmp_path: Path) -> None:
    image = _image.pack_pixels(np.zeros((4, 4, 3), np.uint8))
    names = [
        "/etc/passwd",
        "../../up.png",
        "..",
        "",
        "a\0b\n.png",
        ".hidden.png",
        "x" * 400 + ".png",
        "sur\udcff.png",
        "c:\\windows.png",
    ]
    classes = ("../../evil", "/abs", "..", ".", "a/b", "good")
    records = [Record(name, index % len(classes), image) for index, name in enumerate(names)]
    dataset = named(tmp_path / "data", records, classes)
    before = sorted(os.listdir(tmp_path))
    assert extract_all(dataset, tmp_path / "out", lambda *_: None) == len(names)
    assert sorted(os.listdir(tmp_path)) == [*before, "out"]
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(files) == len(names)
    assert {path.parent.parent for path in files} == {tmp_path / "out" / "train"}
    assert not any(path.name.startswith(".") for path in files)


def test_a_record_that_is_there_twice_gets_two_files(tmp_path: Path) -> None:
    image = _image.pack_pixels(np.zeros((4, 4), np.uint8))
    dataset = named(tmp_path / "data", [Record("x.png", 0, image), Record("x.png", 0, image)], ("a",))
    assert extract_all(dataset, tmp_path / "out", lambda *_: None) == 2
    assert sorted(os.listdir(tmp_path / "out/train/a")) == ["x-1.png", "x.png"]


def test_a_damaged_record_is_named(data: Path, tmp_path: Path) -> None:
    good = open_dataset(data).splits["train"][0].image
    dataset = named(tmp_path / "data", [Record("x.jpg", 0, good[: len(good) // 2])], ("a",))
    with pytest.raises(DataError, match=r"record train/0 \(x\.jpg\) is damaged \(.*\); run ddltrain verify"):
        extract_all(dataset, tmp_path / "out", lambda *_: None)
    assert os.listdir(tmp_path) == ["data"]


def test_the_command(data: Path, tmp_path: Path, command: Command) -> None:
    done = command("extract", data, "train/0", "train/a/small.png", tmp_path / "some")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == sorted(map(str, (tmp_path / "some").rglob("*.*")))
    done = command("extract", data, "--all", tmp_path / "all")
    assert (done.returncode, done.stdout) == (0, f"20 images in {tmp_path / 'all'}\n")
    for words in ((data, tmp_path / "x"), (data, "train/0", tmp_path / "x", "--all")):
        done = command("extract", *words)
        assert done.returncode == 2
        assert done.stderr.startswith("error: say which images")


def test_real_photos_come_back_with_their_coefficients(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "tiny-imagenet-sub" / "val"
    options = PrepareOptions(SplitOptions(val_fraction=0.1), num_workers=2)
    prepare(str(source), tmp_path / "data", options, lambda *_: None)
    extract_all(open_dataset(tmp_path / "data"), tmp_path / "out", lambda *_: None)
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(files) == 1000
    for file in files[::29]:
        original = source / file.parent.name / file.name
        first, second = Image.open(original), Image.open(file)
        assert first.tobytes() == second.tobytes()
        packed = (_image.pack_jpeg(path.read_bytes()) for path in (original, file))
        assert len(set(packed)) == 1
