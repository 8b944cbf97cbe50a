"""The store: what is written is read back, shards are bounded, the map grows, and damage is told."""

import json
import os
import resource
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import lmdb
import numpy as np
import pytest

from ddltrain.errors import DataError
from ddltrain.input.record import Record, decode_record, encode_record, record_digest, record_key
from ddltrain.input.shards import StoreWriter, hash_file
from ddltrain.input.store import DATASET_FILE, FORMAT, FORMAT_VERSION, Store, fingerprint_of, open_dataset

SHARD_BYTES = 1 << 15


def make_records(count: int, image_bytes: int = 100) -> list[Record]:
    generator = np.random.default_rng(count)
    return [
        Record(f"ä b/{index}.png", index * 7 % 5, generator.bytes(image_bytes + index))
        for index in range(count)
    ]


def write_store(
    folder: Path,
    records: list[Record],
    shard_bytes: int = SHARD_BYTES,
    map_bytes: int = 64 << 20,
    split: str = "train",
) -> Store:
    with StoreWriter(folder, split, shard_bytes, map_bytes=map_bytes) as writer:
        for record in records:
            writer.append(record)
    return Store([folder / shard.file for shard in writer.shards])


def write_dataset(folder: Path, counts: dict[str, int]) -> None:
    folder.mkdir()
    splits = {}
    for split, count in counts.items():
        with StoreWriter(folder, split, SHARD_BYTES) as writer:
            for record in make_records(count):
                writer.append(record)
        splits[split] = {"shards": [asdict(shard) for shard in writer.shards]}
    description = {"format": FORMAT, "version": FORMAT_VERSION, "classes": list("abcde"), "fingerprint": "f"}
    (folder / DATASET_FILE).write_text(json.dumps({**description, "splits": splits}))


@pytest.mark.parametrize("name", ["", "a/b c.png", "ü\n\t\udcff.jpg"])
def test_a_record_survives_encoding(name: str) -> None:
    record = Record(name, 2**40, b"\0\xffimage")
    assert decode_record(encode_record(record)) == record


def test_records_come_back_in_order_from_shards_and_maps_that_grew(tmp_path: Path) -> None:
    records = make_records(700, image_bytes=9000)  # 6 MB into shards of 1 MiB, maps of 64 KiB
    store = write_store(tmp_path, records, shard_bytes=1 << 20, map_bytes=1 << 16)
    assert len(store) == 700
    assert list(store) == records
    assert [store.labels.dtype, store.sizes.dtype] == [np.int32, np.int32]
    assert store.labels.tolist() == [record.label for record in records]
    assert store.sizes.tolist() == [len(record.image) for record in records]
    assert sorted(os.listdir(tmp_path)) == [file.name for file in store.files]
    assert len(store.files) == 9
    assert sum(store.counts) == 700
    sizes = [file.stat().st_size for file in store.files]
    assert max(sizes) < 1.1 * (1 << 20)
    assert min(sizes[:-1]) > 0.9 * (1 << 20)


def test_a_record_larger_than_a_shard_gets_one_of_its_own(tmp_path: Path) -> None:
    records = [*make_records(2), Record("big", 0, bytes(3 << 15)), *make_records(1)]
    store = write_store(tmp_path, records)
    assert list(store) == records
    assert store.counts == [2, 1, 1]


def test_keys_sort_by_number_over_all_shards(tmp_path: Path) -> None:
    store = write_store(tmp_path, make_records(300))
    keys = []
    for file in store.files:
        with (
            lmdb.open(str(file), subdir=False, readonly=True, lock=False) as env,
            env.begin() as reader,
        ):
            found = list(reader.cursor().iternext(values=False))
        assert found[-3:] == [b"digests", b"labels", b"sizes"]
        keys += found[:-3]
    assert len(store.files) > 1
    assert keys == [record_key(index) for index in range(300)]


def test_the_same_records_give_the_same_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_store(tmp_path / name, make_records(300))
    files = sorted(os.listdir(tmp_path / "a"))
    assert len(files) > 1
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_a_writer_that_goes_on_behind_finished_shards_gives_the_same_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    records = make_records(300)
    with StoreWriter(tmp_path / "a", "train", SHARD_BYTES) as whole:
        finished = [shard for shard in map(whole.append, records) if shard]
    first = finished[0]
    os.link(tmp_path / "a" / first.file, tmp_path / "b" / first.file)
    (tmp_path / "b" / whole.shards[1].file).write_bytes(b"half-written")
    with StoreWriter(tmp_path / "b", "train", SHARD_BYTES, finished[:1]) as rest:
        for record in records[first.images :]:
            rest.append(record)
    assert rest.shards == whole.shards
    assert [shard.sha256 for shard in whole.shards] == [
        hash_file(tmp_path / "b" / s.file) for s in rest.shards
    ]


def test_the_fingerprint_does_not_depend_on_shards_but_on_every_record(tmp_path: Path) -> None:
    records = make_records(100)
    other = [*records[:50], Record(records[50].name, records[50].label + 1, records[50].image), *records[51:]]
    prints = []
    for number, (made, shard_bytes) in enumerate(((records, 1 << 14), (records, 1 << 20), (other, 1 << 20))):
        (tmp_path / str(number)).mkdir()
        store = write_store(tmp_path / str(number), made, shard_bytes)
        assert store.digests()[7].tobytes() == record_digest(encode_record(made[7]))
        prints.append(fingerprint_of("ab", {"train": store, "val": Store([])}))
    assert prints[0] == prints[1] != prints[2]


def test_ranges_are_read_into_a_block(tmp_path: Path) -> None:
    records = make_records(700, image_bytes=2000)
    store = write_store(tmp_path, records, shard_bytes=1 << 18)
    assert len(store.files) > 5
    ends = np.concatenate([[0], np.cumsum(store.sizes)])
    for first, last in ((0, 700), (0, 0), (699, 700), (1, 300), (299, 640), (700, 700)):
        block = np.zeros(ends[last] - ends[first], np.uint8)
        store.read_into(first, last, block)
        assert block.tobytes() == b"".join(record.image for record in records[first:last])
    part, start = Store(store.files[2:], first=sum(store.counts[:2])), sum(store.counts[:2])
    block = np.zeros(ends[-1] - ends[start + 5], np.uint8)
    part.read_into(5, len(part), block)
    assert block.tobytes() == b"".join(record.image for record in records[start + 5 :])
    assert list(part) == records[start:]
    with pytest.raises(ValueError, match="records 0 to 2"):
        store.read_into(0, 2, np.zeros(5, np.uint8))
    block = np.zeros(ends[-1], np.uint8)
    cuts = [0, 100, 101, 450, 700]
    with ThreadPoolExecutor(4) as pool:
        for first, last in pairwise(cuts):
            pool.submit(store.read_into, first, last, block[ends[first] : ends[last]])
    assert block.tobytes() == b"".join(record.image for record in records)


def test_small_images_are_handed_on_in_pieces_that_a_system_call_takes(tmp_path: Path) -> None:
    records = [Record("", 0, bytes([number % 256])) for number in range(2500)]
    seen: list[int] = []
    write_store(tmp_path, records, 1 << 30).read(1, 2400, lambda images: seen.append(len(images)))
    assert sum(seen) == 2399
    assert max(seen) <= os.sysconf("SC_IOV_MAX")


@pytest.mark.parametrize("value", [None, encode_record(Record("5", 0, b"short"))])
def test_a_record_that_is_missing_or_of_another_size_is_named(tmp_path: Path, value: bytes | None) -> None:
    store = write_store(tmp_path, make_records(9))
    with (
        lmdb.open(str(store.files[0]), subdir=False, lock=False) as env,
        env.begin(write=True) as transaction,
    ):
        if value is None:
            transaction.delete(record_key(5))
        else:
            transaction.put(record_key(5), value)
    with pytest.raises(DataError, match="record 5 is damaged; prepare"):
        store.read_into(0, 9, np.zeros(store.sizes.sum(), np.uint8))


def test_more_shards_than_a_process_may_have_files(tmp_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    records = make_records(400, image_bytes=9000)
    write_store(tmp_path, records, shard_bytes=1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, limit[1]))
    try:
        store = Store(sorted(tmp_path.iterdir()))
        assert len(store.files) == 400
        assert list(store) == records
        block = np.zeros(store.sizes.sum(), np.uint8)
        store.read_into(0, 400, block)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def test_an_index_out_of_range_ends_iteration(tmp_path: Path) -> None:
    store = write_store(tmp_path, make_records(3))
    assert len(list(store)) == 3
    for index in (-1, 3):
        with pytest.raises(IndexError):
            store[index]


def test_many_threads_read_two_stores_of_the_same_files(tmp_path: Path) -> None:
    records = make_records(400)
    stores = write_store(tmp_path, records, shard_bytes=1 << 11), Store(sorted(tmp_path.iterdir()))
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(lambda index: stores[index % 2][index // 40 % 400], range(16000)))
    assert read == [record for record in records for _ in range(40)]


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


def test_an_unfinished_shard_is_refused(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, "train")
    with suppress(KeyError), writer:
        for record in make_records(5000):
            writer.append(record)
        raise KeyError
    assert writer.shards == []
    with pytest.raises(DataError, match="not written to its end"):
        Store([tmp_path / "train-00000.lmdb"])


def test_a_cut_shard_is_refused_and_does_not_kill_the_process(tmp_path: Path) -> None:
    (file,) = write_store(tmp_path, make_records(200, image_bytes=5000), 1 << 30).files
    os.truncate(file, file.stat().st_size // 2)
    code = f"from ddltrain.input.store import Store; Store([{str(file)!r}])"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert child.returncode == 1
    assert "the file was cut" in child.stderr


@pytest.mark.parametrize("content", [b"", b"junk" * 5000])
def test_a_file_that_is_no_shard_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s.lmdb").write_bytes(content)
    with pytest.raises(DataError, match=r"s\.lmdb: not a readable store"):
        Store([tmp_path / "s.lmdb"])


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
        "format version 1, .*prepare the data set again": {**good, "version": 1},
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
    description["splits"]["train"]["shards"][0]["images"] = 5
    good = (folder / DATASET_FILE).read_text()
    (folder / DATASET_FILE).write_text(json.dumps(description))
    with pytest.raises(DataError, match=r"4 records.*tells 5"):
        open_dataset(folder)
    (folder / DATASET_FILE).write_text(good)
    os.truncate(folder / "val-00000.lmdb", 100)
    with pytest.raises(DataError, match=r"val-00000\.lmdb: missing, or not of the"):
        open_dataset(folder)
    (folder / "val-00000.lmdb").unlink()
    with pytest.raises(DataError, match=r"val-00000\.lmdb: missing"):
        open_dataset(folder)
