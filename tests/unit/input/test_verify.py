"""Verifying: a whole data set passes, and whatever is wrong with another is named."""

import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

import lmdb
import numpy as np
import pytest
from conftest import Command
from PIL import Image

from ddltrain.errors import DataError
from ddltrain.input import _image
from ddltrain.input import verify as module
from ddltrain.input.build import PrepareOptions
from ddltrain.input.prepare import prepare
from ddltrain.input.record import (
    DIGESTS_KEY,
    LABELS_KEY,
    SIZES_KEY,
    Record,
    encode_record,
    record_digest,
    record_key,
)
from ddltrain.input.shards import hash_file
from ddltrain.input.splits import SplitOptions
from ddltrain.input.store import DATASET_FILE, open_dataset
from ddltrain.input.verify import verify

SHARD_BYTES = 1 << 15


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of a few shards: photos and pixels."""
    root = tmp_path_factory.mktemp("verify")
    generator = np.random.default_rng(0)
    for split, count in (("train", 12), ("val", 4)):
        for label in "ab":
            folder = root / "source" / split / label
            folder.mkdir(parents=True)
            for index in range(count):
                small = Image.fromarray(generator.integers(0, 256, (6, 6, 3), np.uint8))
                small.resize((100 + index, 90)).save(folder / f"{index}.jpg", quality=95)
            small.save(folder / "small.png")
    options = PrepareOptions(SplitOptions(), shard_bytes=SHARD_BYTES)
    prepare(str(root / "source"), root / "out", options, lambda *_: None)
    assert len(list((root / "out").glob("train-*.lmdb"))) > 2
    return root / "out"


@pytest.fixture
def data(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "data"))


def problems(data: Path) -> list[str]:
    return verify(data, 2, lambda *_: None)


def edit(data: Path, change: Callable[[dict], None]) -> None:
    description = json.loads((data / DATASET_FILE).read_text())
    change(description)
    (data / DATASET_FILE).write_text(json.dumps(description))


def rewrite(data: Path, index: int, record: Record, repair: bool = True) -> None:
    """Puts another record in a place of the first shard, with all checksums right (unless not to `repair` that of the record)."""
    file = data / "train-00000.lmdb"
    value = encode_record(record)
    with (
        lmdb.open(str(file), subdir=False, lock=False, map_size=1 << 28) as env,
        env.begin(write=True) as writer,
    ):
        writer.put(record_key(index), value)
        if repair:
            digests = bytearray(writer.get(DIGESTS_KEY))
            digests[index * 16 : index * 16 + 16] = record_digest(value)
            writer.put(DIGESTS_KEY, bytes(digests))
        for key, item in ((LABELS_KEY, record.label), (SIZES_KEY, len(record.image))):
            array = np.frombuffer(writer.get(key), "<i4").copy()
            array[index] = item
            writer.put(key, array.tobytes())

    def reseal(description: dict) -> None:
        shard = description["splits"]["train"]["shards"][0]
        shard |= {"sha256": hash_file(file), "file_bytes": file.stat().st_size}

    edit(data, reseal)


def test_a_whole_data_set_passes(whole: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    assert verify(whole, 2, lambda *state: seen.append(state)) == []
    assert seen[-1][1] == seen[-1][2] == len(list(whole.glob("*.lmdb")))


def test_every_flipped_byte_is_found(data: Path) -> None:
    file = data / "train-00001.lmdb"
    good = file.read_bytes()
    generator = np.random.default_rng(0)
    named = 0
    for place in generator.integers(0, len(good), 8):
        file.write_bytes(good[:place] + bytes([good[place] ^ 16]) + good[place + 1 :])
        found = problems(data)
        assert found[0] == "train-00001.lmdb: damaged, its SHA-256 is not the one that dataset.json tells"
        assert all(line.startswith(("train-00001.lmdb: ", str(file))) for line in found)
        named += any("record" in line and "its checksum differs" in line for line in found)
    assert named > 3  # most bytes are those of records, which are then named


class Dies(ProcessPoolExecutor):
    """A child that dies over the first thing it does, as over a damaged page that LMDB trusts."""

    def submit(self, *_: object) -> Future[None]:  # type: ignore[override]
        return super().submit(os._exit, 1)


def test_a_shard_that_ends_the_process_that_reads_it_does_not_end_the_command(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = data / "train-00000.lmdb"
    content = file.read_bytes()
    file.write_bytes(content[: 2 * 4096] + np.random.default_rng(0).bytes(len(content) - 2 * 4096))
    assert problems(data)[0].startswith("train-00000.lmdb: damaged")
    monkeypatch.setattr(module, "ProcessPoolExecutor", Dies)
    assert problems(data) == [
        "train-00000.lmdb: damaged, its SHA-256 is not the one that dataset.json tells",
        "train-00000.lmdb: its records cannot be found any more",
    ]


def test_missing_cut_and_extra_files_are_named(data: Path) -> None:
    (data / "train-00000.lmdb").unlink()
    size = (data / "train-00001.lmdb").stat().st_size
    os.truncate(data / "train-00001.lmdb", size - 4096)
    (data / "thesis.tex").write_text("")
    (data / "train-00077.lmdb").write_bytes(b"")
    assert problems(data) == [
        "thesis.tex: not part of the data set",
        "train-00077.lmdb: not part of the data set",
        "train-00000.lmdb: missing",
        f"train-00001.lmdb: {size - 4096} bytes, not the {size} that dataset.json tells",
    ]


def test_records_that_were_wrong_from_the_start_are_named(data: Path) -> None:
    record = open_dataset(data).splits["train"][3]
    rewrite(data, 3, Record(record.name, 2, record.image))
    assert problems(data) == [f"train-00000.lmdb: record 3 ({record.name}): label 2, of 2 classes"]
    rewrite(data, 3, Record(record.name, 0, record.image[:-200]))
    (found,) = problems(data)
    assert found.startswith(f"train-00000.lmdb: record 3 ({record.name}): does not decode (")
    rewrite(data, 3, Record(record.name, 0, record.image[:-1] + b"x"), repair=False)
    assert "train-00000.lmdb: record 3: damaged, its checksum differs" in problems(data)
    rewrite(data, 3, record)
    assert problems(data) == []


def test_what_holds_for_all_records_together_is_checked(data: Path) -> None:
    record = open_dataset(data).splits["train"][3]
    rewrite(data, 3, Record(record.name, 1, record.image))
    assert problems(data) == [
        "train: the images of each class are not as many as dataset.json tells",
        "dataset.json: the fingerprint is not that of the records",
    ]
    edit(data, lambda description: description["splits"]["train"]["shards"].pop())
    assert any("not part of the data set" in problem for problem in problems(data))


def test_a_wrong_count_is_told(data: Path) -> None:
    def change(description: dict) -> None:
        shard = description["splits"]["val"]["shards"][-1]
        shard["images"] += 1
        expected.append(
            f"{shard['file']}: {shard['images'] - 1} records, dataset.json tells {shard['images']}"
        )

    expected: list[str] = []
    edit(data, change)
    assert problems(data) == expected


def test_what_is_no_data_set_is_an_error(data: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not prepared"):
        problems(tmp_path)
    edit(data, lambda description: description.pop("fingerprint"))
    with pytest.raises(DataError, match=r"dataset\.json: damaged \(KeyError"):
        problems(data)


def test_the_command_tells_and_its_status_says_so(data: Path, command: Command) -> None:
    done = command("verify", data)
    assert (done.returncode, done.stdout) == (0, f"{data}: all is well\n")
    assert _image.info(open_dataset(data).splits["val"][0].image)[0] == "jpeg"
    (data / "extra").mkdir()
    done = command("verify", data, "--workers", 1)
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == "extra: not part of the data set"
    assert done.stdout.splitlines()[1].startswith(f"{data}: NOT as it should be; prepare it again")
    assert command("verify", data / "none").returncode == 2
