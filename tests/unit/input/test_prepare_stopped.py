"""A preparation that was killed or interrupted goes on where it was."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from preparing import files_of, make

from ddltrain.errors import EXIT_KILLED, DataError
from ddltrain.input.prepare_report import REPORT_FILE

CHILD = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
from ddltrain.cli import main
from ddltrain.input.shards import StoreWriter
records, number = int(sys.argv[1]), int(sys.argv[2])
append, appended = StoreWriter.append, []
def append_and_stop(self, record):
    appended.append(append(self, record))
    if len(appended) == records:
        os.kill(os.getpid(), number)
    return appended[-1]
StoreWriter.append = append_and_stop
sys.exit(main.main(["prepare", *sys.argv[3:]]))
"""
SMALL_SHARDS = ("--shard-size", "1M", "--workers", "2")


def make_large_source(root: Path) -> Path:
    """Some 6 MB of pixels, six shards of 1 MiB."""
    generator = np.random.default_rng(1)
    for split, count in (("train", 300), ("val", 60)):
        for name in ("a", "b"):
            (root / split / name).mkdir(parents=True)
            for index in range(count):
                pixels = generator.integers(0, 256, (40, 64, 3), np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{index}.bmp")
    (root / "train" / "a" / "100.bmp").write_bytes(b"")  # what is left out is remembered, too
    return root


def stop_half_way(
    source: Path, out: Path, number: signal.Signals, records: int, on_bad: str = "skip"
) -> tuple[int, str]:
    """Prepares in a process of its own, which gets a signal when it has written so many records; a shard has 128."""
    words = (records, int(number), source, out, "--on-bad", on_bad, *SMALL_SHARDS)
    child = subprocess.run(
        [sys.executable, "-c", CHILD, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not out.exists()
    return child.returncode, child.stderr.strip()


def test_killed_it_goes_on_where_it_was_and_makes_the_same(tmp_path: Path) -> None:
    source = make_large_source(tmp_path / "source")
    options = {"skip_bad": True, "shard_bytes": 1 << 20, "num_workers": 2}
    whole = make(source, tmp_path / "whole", **options).description
    out, partial = tmp_path / "out", tmp_path / ".out.partial"
    for records in (150, 300):  # killed twice, in the second shard and in the fourth
        assert stop_half_way(source, out, signal.SIGKILL, records)[0] == -signal.SIGKILL
    assert (partial / "train-00003.lmdb").exists()
    with (partial / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"split": "train", "shard"')  # a line that the kill cut short
    started: dict[str, int] = {}
    made = make(
        source, out, **options, on_progress=lambda split, done, total: started.setdefault(split, done)
    ).description
    assert started == {"train": 3 * 128 + 2, "val": 1}  # one was left out
    assert made["fingerprint"] == whole["fingerprint"]
    assert {**made, "created": 0} == {**whole, "created": 0}
    assert files_of(out) == files_of(tmp_path / "whole")
    assert (out / REPORT_FILE).read_text() == (tmp_path / "whole" / REPORT_FILE).read_text()
    assert sorted(os.listdir(tmp_path)) == ["out", "source", "whole"]


def test_after_a_kill_other_options_or_another_source_start_anew(tmp_path: Path) -> None:
    source = make_large_source(tmp_path / "source")
    out = tmp_path / "out"
    assert stop_half_way(source, out, signal.SIGKILL, 200)[0] == -signal.SIGKILL
    (source / "train" / "a" / "100.bmp").unlink()
    first: dict[str, int] = {}
    description = make(
        source, out, shard_bytes=1 << 20, on_progress=lambda split, done, total: first.setdefault(split, done)
    ).description
    assert first == {"train": 1, "val": 1}
    assert description["splits"]["train"]["images"] == 599
    assert description["skipped"] == []


def test_interrupted_it_says_what_is_kept(tmp_path: Path) -> None:
    source = make_large_source(tmp_path / "source")
    out = tmp_path / "out"
    status, said = stop_half_way(source, out, signal.SIGINT, 200)
    assert status == EXIT_KILLED
    assert (
        said == f"interrupted: nothing was written to {out}; the same command goes on where this one stopped"
    )
    assert sorted(os.listdir(tmp_path)) == [".out.partial", "source"]
    status, said = stop_half_way(source, tmp_path / "other", signal.SIGINT, 50)
    assert said == f"interrupted: nothing was written to {tmp_path / 'other'}"
    assert sorted(os.listdir(tmp_path)) == [".out.partial", "source"]
    make(source, out, skip_bad=True, shard_bytes=1 << 20)
    assert sorted(os.listdir(tmp_path)) == ["out", "source"]


def test_shards_that_a_bad_image_cut_short_are_not_taken_up(tmp_path: Path) -> None:
    source = make_large_source(tmp_path / "source")
    out = tmp_path / "out"
    # Behind the bad image, the fourth of train, only val is written: here it stops in the middle of it.
    assert stop_half_way(source, out, signal.SIGKILL, 3 + 60, on_bad="error")[0] == -signal.SIGKILL
    description = make(source, out, skip_bad=True, shard_bytes=1 << 20).description
    assert [description["splits"][split]["images"] for split in ("train", "val")] == [599, 120]


def test_a_bad_image_ends_a_kept_preparation_as_any(tmp_path: Path) -> None:
    source = make_large_source(tmp_path / "source")
    out = tmp_path / "out"
    stop_half_way(source, out, signal.SIGKILL, 200)  # with --on-bad skip
    with pytest.raises(DataError, match=r"1 of 720 images .* \(1 empty\)"):
        make(source, out, shard_bytes=1 << 20)
    assert sorted(os.listdir(tmp_path)) == ["out.bad.txt", "source"]
