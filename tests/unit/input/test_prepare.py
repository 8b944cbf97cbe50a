"""Preparing: whole or not at all, the same each time, and clear about bad images."""

import argparse
import fcntl
import json
import os
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import lmdb
import numpy as np
import pytest
from PIL import Image
from preparing import files_of, make, make_source

from ddltrain.cli import prepare as command
from ddltrain.errors import DataError
from ddltrain.input import _image
from ddltrain.input import prepare as module
from ddltrain.input.packing import Shape
from ddltrain.input.prepare import Outcome
from ddltrain.input.prepare_report import REPORT_FILE
from ddltrain.input.shards import StoreWriter, hash_file
from ddltrain.input.store import DATASET_FILE, open_dataset


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_source(tmp_path / "source")


def test_every_image_is_there_with_its_label_and_pixels(source: Path, tmp_path: Path) -> None:
    description = make(source, tmp_path / "out").description
    dataset = open_dataset(tmp_path / "out")
    assert dataset.classes == ("a", "b")
    assert dataset.fingerprint == description["fingerprint"]
    for split, store in dataset.splits.items():
        assert len(store) == 10
        assert store.labels.tolist() == [0] * 5 + [1] * 5
        for record in store:
            pixels = _image.decode_rgb(record.image)
            assert (pixels == np.asarray(Image.open(source / record.name))).all()
            assert record.name.startswith(f"{split}/{dataset.classes[record.label]}/")
    facts = description["splits"]["train"]
    assert (facts["images"], facts["per_class"]) == (10, [5, 5])
    assert (facts["kinds"], facts["stored"], facts["odd"]) == ({"rgb png": 10}, {"pixels": 10}, {})
    assert (facts["smallest"], facts["largest"]) == ((9, 8), (9, 12))
    assert sorted(os.listdir(tmp_path)) == ["out", "source"]
    assert sorted(os.listdir(tmp_path / "out")) == [
        DATASET_FILE,
        REPORT_FILE,
        "train-00000.lmdb",
        "val-00000.lmdb",
    ]
    for facts in description["splits"].values():
        assert [hash_file(tmp_path / "out" / shard["file"]) for shard in facts["shards"]] == [
            shard["sha256"] for shard in facts["shards"]
        ]


def test_the_result_does_not_depend_on_the_workers(source: Path, tmp_path: Path) -> None:
    made = [
        make(source, tmp_path / f"out{count}", num_workers=count, shard_bytes=1 << 11).description
        for count in (1, 2, 7)
    ]
    assert len({description["fingerprint"] for description in made}) == 1
    first, *others = (files_of(tmp_path / f"out{count}") for count in (1, 2, 7))
    assert len(first) == 4
    assert all(other == first for other in others)
    whole = make(source, tmp_path / "whole")
    assert whole.description["fingerprint"] == made[0]["fingerprint"]
    assert len(files_of(tmp_path / "whole")) == 2


def test_the_fingerprint_follows_images_labels_and_split(source: Path, tmp_path: Path) -> None:
    seen = [make(source, tmp_path / "o1").description["fingerprint"]]
    os.rename(source / "train/a/0.png", source / "train/b/00.png")
    seen.append(make(source, tmp_path / "o2").description["fingerprint"])
    os.rename(source / "train/b/00.png", source / "val/b/00.png")
    seen.append(make(source, tmp_path / "o3").description["fingerprint"])
    Image.new("RGB", (8, 8)).save(source / "val/b/00.png")
    seen.append(make(source, tmp_path / "o4").description["fingerprint"])
    assert len(set(seen)) == 4


def test_unchanged_is_up_to_date_and_changed_needs_force(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = make(source, out)
    written_ns = (out / DATASET_FILE).stat().st_mtime_ns
    assert make(source, out) == Outcome(json.loads(json.dumps(first.description)), was_up_to_date=True)
    assert (out / DATASET_FILE).stat().st_mtime_ns == written_ns
    (source / "train/a/0.png").unlink()
    with pytest.raises(DataError, match="the source has changed since; add --force"):
        make(source, out)
    assert len(open_dataset(out).splits["train"]) == 10
    assert not make(source, out, force=True).was_up_to_date
    assert len(open_dataset(out).splits["train"]) == 9
    assert sorted(os.listdir(tmp_path)) == ["out", "source"]


def test_other_options_another_source_and_damage_need_force(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(source / "train", out, val_fraction=0.2)
    with pytest.raises(DataError, match=r"val_fraction = 0\.2, not 0\.4; add --force"):
        make(source / "train", out, val_fraction=0.4)
    with pytest.raises(DataError, match=r"was made from .*source/train; add --force"):
        make(source, out)
    with pytest.raises(DataError, match=r"size = keep, not shorter=7; add --force"):
        make(source / "train", out, val_fraction=0.2, shape=Shape("shorter", 7))
    os.truncate(out / "val-00000.lmdb", 5000)
    with pytest.raises(DataError, match=r"val-00000\.lmdb: missing, or not of the .*add --force"):
        make(source / "train", out, val_fraction=0.2)


def test_a_data_set_of_the_first_format_needs_force(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(source, out)
    description = json.loads((out / DATASET_FILE).read_text())
    (out / DATASET_FILE).write_text(json.dumps({**description, "version": 1}))
    (out / "train.lmdb").write_bytes(b"")
    with pytest.raises(DataError, match=r"is of format version 1, .*add --force to replace it"):
        make(source, out)
    make(source, out, force=True)
    assert not (out / "train.lmdb").exists()


def test_what_is_not_ours_is_never_touched(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    for force in (False, True):
        with pytest.raises(DataError, match="is not a prepared data set"):
            make(source, out, force=force)
        with pytest.raises(DataError, match="not a folder to write to"):
            make(source, out / "thesis.tex", force=force)
    (out / "thesis.tex").unlink()
    make(source, out)  # an empty folder will do
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(DataError, match=r"holds other files \(thesis\.tex\)"):
        make(source, out, force=True)
    assert (out / "thesis.tex").read_text() == "years of work"
    with pytest.raises(DataError, match="lies inside the source"):
        make(source, source / "train/a/out")


def test_bad_images_are_all_told_and_nothing_is_made(source: Path, tmp_path: Path) -> None:
    for index in range(23):
        (source / f"train/a/bad{index:02d}\n.jpg").write_bytes(b"")
    (source / "val/b/0.png").write_bytes(b"text")
    with pytest.raises(DataError) as caught:
        make(source, tmp_path / "out", num_workers=3)
    message = str(caught.value)
    assert message.startswith(f"24 of 43 images of {source} are unusable (23 empty, 1 no image)")
    assert message.count("empty file") == 20
    assert "... and 4 more" in message
    listed = (tmp_path / "out.bad.txt").read_text().splitlines()
    assert listed[0] == "train/a/bad00\\n.jpg\tempty\tempty file"
    assert listed[-1].startswith("val/b/0.png\tno image\tnot an image")
    assert len(listed) == 24
    assert sorted(os.listdir(tmp_path)) == ["out.bad.txt", "source"]


def test_bad_images_can_be_skipped_and_are_listed(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (tmp_path / "out.bad.txt").write_text("of an earlier try")
    (source / "train/a/1.png").write_bytes(b"")
    description = make(source, out, skip_bad=True).description
    assert description["skipped"] == [{"name": "train/a/1.png", "reason": "empty file", "fault": "empty"}]
    assert description["splits"]["train"]["per_class"] == [4, 5]
    assert [record.name for record in open_dataset(out).splits["train"]][:2] == [
        "train/a/0.png",
        "train/a/2.png",
    ]
    assert not (tmp_path / "out.bad.txt").exists()
    with pytest.raises(DataError, match="without 1 images; add --force"):
        make(source, out)


def test_a_class_without_usable_images_is_an_error(source: Path, tmp_path: Path) -> None:
    for path in (source / "train/b").iterdir():
        path.write_bytes(b"")
    with pytest.raises(DataError, match="no usable train image is left of the class b"):
        make(source, tmp_path / "out", skip_bad=True)
    assert os.listdir(tmp_path) == ["source"]


def test_a_full_disk_is_told_and_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: StoreWriter) -> None:
        raise lmdb.Error("mdb_txn_commit: Input/output error")

    monkeypatch.setattr(StoreWriter, "_finish", fail)
    monkeypatch.setattr(module, "_FULL_DISK_BYTES", 1 << 62)
    with pytest.raises(DataError, match=r"out: cannot be written \(the disk is full\); nothing is left"):
        make(source, tmp_path / "out")
    assert os.listdir(tmp_path) == ["source"]


def test_two_at_once_are_kept_apart_and_a_dead_one_is_cleared(source: Path, tmp_path: Path) -> None:
    partial = tmp_path / ".out.partial"
    partial.mkdir()
    (partial / "train-00000.lmdb").write_bytes(b"half")
    with (partial / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process is preparing it"):
            make(source, tmp_path / "out")
        assert (partial / "train-00000.lmdb").read_bytes() == b"half"
    make(source, tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["out", "source"]
    partial.mkdir()
    assert make(source, tmp_path / "out").was_up_to_date
    assert not partial.exists()


def run_command(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))


def test_the_summary_tells_all_and_what_to_type_next(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("CMYK", (8, 8)).save(source / "train/a/[red]x.jpg")
    os.rename(source / "train/b/3.png", source / "train/b/3.jpg")
    (source / "train/a/notes.txt").write_text("")
    (source / "train/a/bad\udcff.png").write_text("")
    assert run_command(str(source), str(tmp_path / "out"), "--on-bad", "skip", "--workers", "2") == 0
    shown = capsys.readouterr().out
    for text in (
        "1 baseline cmyk jpeg",
        "10 rgb png",
        "10 pixels",
        "odd in train: 1 baseline cmyk jpeg, encoded anew (4 color components): train/a/[red]x.jpg\n",
        "odd in train: 1 png named .jpg: train/b/3.jpg\n",
        "skipped: 1 files (1 empty)\n",
        "train/a/bad\\udcff.png: empty file",
        "ignored: 1 files (no images)\n",
        "train/a/notes.txt: not the name of an image",
        f"Next: ddltrain train models/resnet18/imagenette-128.toml data={tmp_path / 'out'}",
    ):
        assert text in shown
    report = (tmp_path / "out" / REPORT_FILE).read_text()
    assert "odd\tpng named .jpg\ttrain/b/3.jpg\n" in report
    assert "left out\tno image: " not in report
    assert "left out\tempty: empty file\ttrain/a/bad\\udcff.png\n" in report
    assert "ignored\tnot the name of an image\ttrain/a/notes.txt\n" in report
    assert run_command(str(source), str(tmp_path / "out"), "--on-bad", "skip") == 0
    assert "is up to date" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--val-fraction", "1"],
        ["--val-fraction", "x"],
        ["--workers", "0"],
        ["--size", "256"],
        ["--size", "shorter=0"],
        ["--size", "wider=3"],
        ["--quality", "101"],
        ["--shard-size", "10"],
        ["--shard-size", "1X"],
        ["--as", "folder"],
    ],
)
def test_wrong_options_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        run_command("digits", "out", *arguments)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from ddltrain.cli import prepare; "
        "print([m for m in ('numpy', 'PIL', 'lmdb', 'torch', 'rich') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_real_photos_are_kept_as_they_are(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "tiny-imagenet-sub"
    description = make(source, tmp_path / "out", num_workers=2).description
    assert len(description["classes"]) == 20
    assert description["splits"]["train"]["stored"] == {"coefficients kept": 2000}
    assert description["splits"]["val"]["per_class"] == [50] * 20
    store = open_dataset(tmp_path / "out").splits["train"]
    for record in (store[index] for index in range(0, 2000, 97)):
        original = (source / record.name).read_bytes()
        kept = Image.open(BytesIO(_image.unpack(record.image)))
        assert kept.tobytes() == Image.open(BytesIO(original)).tobytes()
