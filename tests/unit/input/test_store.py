"""The store: what is written is read back, the map grows, and damage is told."""

import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import lmdb
import numpy as np
import pytest

from ddltrain.errors import DataError
from ddltrain.input.store import (
    DATASET_FILE,
    FORMAT,
    FORMAT_VERSION,
    Record,
    Store,
    StoreWriter,
    decode_record,
    encode_record,
    open_dataset,
)


def make_records(count: int, image_bytes: int = 100) -> list[Record]:
    generator = np.random.default_rng(count)
    return [
        Record(f"ä b/{index}.png", index * 7 % 5, generator.bytes(image_bytes + index))
        for index in range(count)
    ]


def write_store(path: Path, records: list[Record], map_bytes: int = 64 << 20) -> None:
    with StoreWriter(path, map_bytes) as writer:
        for record in records:
            writer.append(record)


def write_dataset(folder: Path, counts: dict[str, int]) -> None:
    folder.mkdir()
    splits = {}
    for split, count in counts.items():
        file = folder / f"{split}.lmdb"
        write_store(file, make_records(count))
        splits[split] = {"file": file.name, "images": count, "file_bytes": file.stat().st_size}
    description = {"format": FORMAT, "version": FORMAT_VERSION, "classes": list("abcde"), "fingerprint": "f"}
    (folder / DATASET_FILE).write_text(json.dumps({**description, "splits": splits}))


@pytest.mark.parametrize("name", ["", "a/b c.png", "ü\n\t\udcff.jpg"])
def test_a_record_survives_encoding(name: str) -> None:
    record = Record(name, 2**40, b"\0\xffimage")
    assert decode_record(encode_record(record)) == record


def test_records_come_back_in_order_from_a_map_that_grew(tmp_path: Path) -> None:
    records = make_records(
        700, image_bytes=9000
    )  # 6 MB into a map of 64 KiB; more records than one byte counts
    write_store(tmp_path / "s.lmdb", records, map_bytes=1 << 16)
    store = Store(tmp_path / "s.lmdb")
    assert len(store) == 700
    assert [store[index] for index in range(700)] == records
    assert store.labels.dtype == np.int64
    assert store.labels.tolist() == [record.label for record in records]
    assert os.listdir(tmp_path) == ["s.lmdb"]


def test_keys_sort_by_number(tmp_path: Path) -> None:
    write_store(tmp_path / "s.lmdb", make_records(300))
    with (
        lmdb.open(str(tmp_path / "s.lmdb"), subdir=False, readonly=True, lock=False) as env,
        env.begin() as reader,
    ):
        keys = list(reader.cursor().iternext(values=False))
    assert keys == [*(index.to_bytes(8, "big") for index in range(300)), b"labels"]


def test_the_same_records_give_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_store(tmp_path / name, make_records(50))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_an_index_out_of_range_ends_iteration(tmp_path: Path) -> None:
    write_store(tmp_path / "s.lmdb", make_records(3))
    store = Store(tmp_path / "s.lmdb")
    assert len(list(store)) == 3
    for index in (-1, 3):
        with pytest.raises(IndexError):
            store[index]


def test_many_threads_read_two_stores_of_one_file(tmp_path: Path) -> None:
    records = make_records(400)
    write_store(tmp_path / "s.lmdb", records)
    stores = Store(tmp_path / "s.lmdb"), Store(tmp_path / "s.lmdb")
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(lambda index: stores[index % 2][index % 400], range(4000)))
    assert read == records * 10


def test_a_read_only_folder_is_enough(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    write_dataset(folder, {"train": 4, "val": 2})
    for path in (*folder.iterdir(), folder):
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    dataset = open_dataset(folder)
    assert (len(dataset.splits["train"]), len(dataset.splits["val"])) == (4, 2)
    assert dataset.classes == tuple("abcde")
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    folder.chmod(0o755)


def test_an_unfinished_store_is_refused(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "s.lmdb")
    with suppress(KeyError), writer:
        for record in make_records(5000):
            writer.append(record)
        raise KeyError
    with pytest.raises(DataError, match="not written to its end"):
        Store(tmp_path / "s.lmdb")


def test_a_cut_store_is_refused_and_does_not_kill_the_process(tmp_path: Path) -> None:
    file = tmp_path / "s.lmdb"
    write_store(file, make_records(200, image_bytes=5000))
    os.truncate(file, file.stat().st_size // 2)
    code = f"from ddltrain.input.store import Store; Store({str(file)!r})"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert child.returncode == 1
    assert "the file was cut" in child.stderr


@pytest.mark.parametrize("content", [b"", b"junk" * 5000])
def test_a_file_that_is_no_store_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s.lmdb").write_bytes(content)
    with pytest.raises(DataError, match=r"s\.lmdb: not a readable store"):
        Store(tmp_path / "s.lmdb")


def test_what_is_wrong_with_a_data_set_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such folder.*ddltrain prepare"):
        open_dataset(tmp_path / "none")
    with pytest.raises(DataError, match="not prepared"):
        open_dataset(tmp_path)
    folder = tmp_path / "d"
    write_dataset(folder, {"train": 4, "val": 2})
    file = folder / DATASET_FILE
    good = json.loads(file.read_text())
    wrong = {
        "format version 99": {**good, "version": 99},
        "not the description": {"format": "other"},
        "damaged": {key: value for key, value in good.items() if key != "classes"},
    }
    for message, description in wrong.items():
        file.write_text(json.dumps(description))
        with pytest.raises(DataError, match=message):
            open_dataset(folder)
    file.write_text("{")
    with pytest.raises(DataError, match="unreadable"):
        open_dataset(folder)


def test_files_that_do_not_fit_the_description_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    write_dataset(folder, {"train": 4, "val": 2})
    description = json.loads((folder / DATASET_FILE).read_text())
    description["splits"]["train"]["images"] = 5
    (folder / DATASET_FILE).write_text(json.dumps(description))
    with pytest.raises(DataError, match=r"4 records.*tells 5"):
        open_dataset(folder)
    os.truncate(folder / "val.lmdb", 100)
    with pytest.raises(DataError, match=r"val\.lmdb: missing, or not of the"):
        open_dataset(folder)
    (folder / "val.lmdb").unlink()
    with pytest.raises(DataError, match=r"val\.lmdb: missing"):
        open_dataset(folder)
