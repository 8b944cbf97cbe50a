"""The prepared data set on disk: for each split LMDB shards of records, and `dataset.json`, which describes it all."""

import bisect
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
from numpy.typing import NDArray

from ddltrain.errors import DataError
from ddltrain.input.record import (
    DIGEST_BYTES,
    DIGESTS_KEY,
    LABELS_KEY,
    NUM_ARRAYS,
    SIZES_KEY,
    Record,
    Shard,
    decode_record,
    record_key,
)
from ddltrain.input.shard_reader import ReadAhead, Take, open_shard, read_array, reason, take_records

DATASET_FILE = "dataset.json"
FORMAT = "ddltrain dataset"
FORMAT_VERSION = 2
SPLITS = ("train", "val")


class Store:
    """The records of a split for reading, from the shards `files`. Many threads may read at once.

    `first` is the number in the split of the first record, where not all shards are given. Nothing is ever written, so the folder
    may be read-only. Raises `DataError` for a shard that is missing, is none, was cut, or was not written to its end.
    """

    labels: NDArray[np.int32]
    """The labels of all records in order, int32 [n], read-only."""
    sizes: NDArray[np.int32]
    """The bytes of each packed image, without label and name, int32 [n], read-only."""
    counts: list[int]
    """The records in each shard."""

    def __init__(self, files: Sequence[Path], first: int = 0) -> None:
        self.first = first
        self.files = tuple(map(Path, files))
        labels, sizes = [], []
        for file in self.files:
            with open_shard(file) as env:
                labels.append(read_array(env, file, LABELS_KEY))
                sizes.append(read_array(env, file, SIZES_KEY))
                num_entries = env.stat()["entries"]
            if num_entries != len(labels[-1]) + NUM_ARRAYS or len(labels[-1]) != len(sizes[-1]):
                raise DataError(f"{file}: damaged; prepare the data set again")
        self.counts = [len(part) for part in labels]
        self._starts = [0, *np.cumsum(self.counts, dtype=np.int64).tolist()]
        self.labels, self.sizes = (
            np.concatenate([np.empty(0, "<i4"), *parts]).astype(np.int32) for parts in (labels, sizes)
        )
        self.labels.setflags(write=False)
        self.sizes.setflags(write=False)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Record:
        return decode_record(self.value(index))

    def value(self, index: int) -> bytes:
        """The bytes of a record as they lie in the store; raises `DataError`."""
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of a store of {len(self)}")
        file = self.files[bisect.bisect_right(self._starts, index) - 1]
        try:
            with open_shard(file) as env, env.begin() as transaction:
                value = transaction.get(record_key(self.first + int(index)))
        except lmdb.Error as error:
            raise DataError(f"{file}: record {index} is unreadable ({reason(error)})") from error
        if value is None:
            raise DataError(f"{file}: record {index} is missing; prepare the data set again")
        return bytes(value)

    def __iter__(self) -> Iterator[Record]:
        for file, start, end in zip(self.files, self._starts[:-1], self._starts[1:], strict=True):
            with open_shard(file):  # else it would be opened for each record
                yield from (self[index] for index in range(start, end))

    def digests(self) -> NDArray[np.uint8]:
        """The digests of all records in order, uint8 [n, 16]."""
        parts = [np.empty(0, np.uint8)]
        for file in self.files:
            with open_shard(file) as env:
                parts.append(read_array(env, file, DIGESTS_KEY, "u1"))
        return np.concatenate(parts).reshape(-1, DIGEST_BYTES)

    def read(self, first: int, last: int, take: Take) -> None:
        """Gives the packed images of records first to last - 1 to `take`, a few at a time, in the order of the disk.

        Several threads may read disjoint ranges at once. Raises `DataError` for a damaged shard.
        """
        if not 0 <= first <= last <= len(self):
            raise ValueError(f"records {first} to {last} of {len(self)}")
        for number, file in enumerate(self.files):
            start, end = self._starts[number : number + 2]
            low, high = max(first, start), min(last, end)
            if low < high:
                with closing(ReadAhead(file, self.sizes[start:end], low - start, high - start)) as ahead:
                    take_records(file, self.first + low, self.sizes[low:high], take, ahead)

    def read_into(self, first: int, last: int, block: NDArray[np.uint8]) -> None:
        """Writes the images into `block`, uint8 [sum of their sizes], one right after another; see `read`."""
        if len(block) != self.sizes[first:last].sum(dtype=np.int64):
            raise ValueError(f"records {first} to {last} into {len(block)} bytes")
        position = 0

        def copy(images: list[memoryview]) -> None:
            nonlocal position
            for image in images:
                block[position : position + len(image)] = np.frombuffer(image, np.uint8)
                position += len(image)

        self.read(first, last, copy)


@dataclass(frozen=True)
class Dataset:
    """A prepared data set.

    `classes` are the class names, in the order of the labels; `fingerprint` is a SHA-256 over all records;
    `splits` holds the stores `train` and `val`; `description` is the whole of `dataset.json`.
    """

    path: Path
    classes: tuple[str, ...]
    fingerprint: str
    splits: dict[str, Store]
    description: dict[str, Any]


def open_dataset(path: Path) -> Dataset:
    """Opens the data set in the folder `path`; raises `DataError` if it is missing or damaged."""
    path = Path(path)
    description = read_description(path)
    try:
        classes = tuple(str(name) for name in description["classes"])
        shards = {split: read_shards(description, split) for split in SPLITS}
        fingerprint = str(description["fingerprint"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path / DATASET_FILE}: damaged ({error!r}); prepare the data set again") from error
    splits = {split: _open_split(path, shards[split]) for split in SPLITS}
    return Dataset(path, classes, fingerprint, splits, description)


def fingerprint_of(classes: Sequence[str], splits: dict[str, Store]) -> str:
    """A SHA-256 over the classes and all records of a data set; it does not depend on how they are cut into shards."""
    digest = hashlib.sha256(json.dumps(list(classes)).encode())
    for split in SPLITS:
        digest.update(f"{split} {len(splits[split])}".encode())
        digest.update(splits[split].digests().tobytes())
    return digest.hexdigest()


def read_shards(description: dict[str, Any], split: str) -> list[Shard]:
    """The shards of a split; raises `KeyError`, `TypeError` or `ValueError` for what is no description of them."""
    return [
        Shard(str(facts["file"]), int(facts["images"]), int(facts["file_bytes"]), str(facts["sha256"]))
        for facts in description["splits"][split]["shards"]
    ]


def _open_split(folder: Path, shards: Sequence[Shard]) -> Store:
    for shard in shards:
        file = folder / shard.file
        if not file.is_file() or file.stat().st_size != shard.file_bytes:
            raise DataError(
                f"{file}: missing, or not of the {shard.file_bytes} bytes that {DATASET_FILE} tells; "
                "prepare the data set again"
            )
    store = Store([folder / shard.file for shard in shards])
    for file, shard, images in zip(store.files, shards, store.counts, strict=True):
        if images != shard.images:
            raise DataError(f"{file}: {images} records, {DATASET_FILE} tells {shard.images}")
    return store


def read_description(path: Path) -> dict[str, Any]:
    """The content of `dataset.json` in the folder `path`, its format checked; raises `DataError`."""
    file = path / DATASET_FILE
    if not path.is_dir():
        raise DataError(f"{path}: no such folder; prepare a data set: `ddltrain prepare SOURCE {path}`")
    try:
        description = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: not prepared (no {DATASET_FILE}): `ddltrain prepare {path} OUT`") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: unreadable ({reason(error)})") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise DataError(f"{file}: not the description of a prepared data set")
    if description.get("version") != FORMAT_VERSION:
        raise DataError(
            f"{file}: format version {description.get('version')!r}, this version of ddltrain reads "
            f"{FORMAT_VERSION}; prepare the data set again"
        )
    return description
