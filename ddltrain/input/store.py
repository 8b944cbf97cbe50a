"""The prepared data set on disk: one LMDB file of records per split, and `dataset.json`, which describes it.

Record i lies under the key i (8 bytes, big-endian, so that keys sort by number). The labels lie once more, as
one array under the key `labels`, so that they can be read without the images. Numbers are little-endian.
"""

import json
import os
import struct
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import lmdb
import numpy as np
from numpy.typing import NDArray

from ddltrain.errors import DataError

DATASET_FILE = "dataset.json"
FORMAT = "ddltrain dataset"
FORMAT_VERSION = 1
SPLITS = ("train", "val")

_LABELS_KEY = b"labels"
_HEADER = struct.Struct("<qI")  # label, length of the name in bytes
_BATCH_BYTES = 32 << 20  # one LMDB transaction; also what is held to be written again when the map must grow
_BATCH_RECORDS = 4096


@dataclass(frozen=True)
class Record:
    """One labelled image.

    `name` is the path relative to the source, `label` the index of the class, `image` an encoded JPEG or PNG
    (8-bit gray or RGB).
    """

    name: str
    label: int
    image: bytes


def encode_record(record: Record) -> bytes:
    """The bytes of a record as they lie in the store."""
    name = record.name.encode("utf-8", "surrogateescape")  # names need not be valid UTF-8
    return _HEADER.pack(record.label, len(name)) + name + record.image


def decode_record(value: bytes) -> Record:
    """The inverse of `encode_record`."""
    label, name_bytes = _HEADER.unpack_from(value)
    end = _HEADER.size + name_bytes
    return Record(value[_HEADER.size : end].decode("utf-8", "surrogateescape"), label, value[end:])


def _key(index: int) -> bytes:
    return index.to_bytes(8, "big")


class StoreWriter:
    """Writes a new store, record by record; a context manager that flushes to disk and closes at its end.

    The map starts at `map_bytes` and doubles when it is full. A store whose writer did not reach its end has
    no labels, so `Store` refuses it. Raises `OSError` or `lmdb.Error` where the disk does not take the data.
    """

    def __init__(self, path: Path, map_bytes: int = 64 << 20) -> None:
        self._map_bytes = map_bytes
        # Nothing reads the file before it is complete: one sync at the end is enough.
        self._env = lmdb.open(
            os.fspath(path), subdir=False, map_size=map_bytes, lock=False, sync=False, metasync=False
        )
        self._pending: list[tuple[bytes, bytes]] = []
        self._pending_bytes = 0
        self._labels: list[int] = []

    def append(self, record: Record) -> None:
        """Adds `record` as the next one."""
        value = encode_record(record)
        self._pending.append((_key(len(self._labels)), value))
        self._pending_bytes += len(value)
        self._labels.append(record.label)
        if self._pending_bytes >= _BATCH_BYTES or len(self._pending) >= _BATCH_RECORDS:
            self._flush()

    def _flush(self) -> None:
        while True:
            try:
                with self._env.begin(write=True) as transaction:
                    for key, value in self._pending:
                        transaction.put(key, value)
                break
            except lmdb.MapFullError:  # the transaction was undone as a whole
                self._map_bytes *= 2
                self._env.set_mapsize(self._map_bytes)
        self._pending.clear()
        self._pending_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._pending.append((_LABELS_KEY, np.array(self._labels, "<i8").tobytes()))
                self._flush()
                self._env.sync(True)
        finally:
            self._env.close()


# LMDB must not open one file twice in a process, so the stores of one file share an environment.
_environments: "weakref.WeakValueDictionary[str, lmdb.Environment]" = weakref.WeakValueDictionary()
_environments_lock = threading.Lock()


def _open_environment(path: Path) -> lmdb.Environment:
    real = os.path.realpath(path)
    with _environments_lock:
        env = _environments.get(real)
        if env is None:
            env = lmdb.open(real, subdir=False, readonly=True, lock=False, create=False, readahead=False)
            _environments[real] = env
        return env


class Store:
    """A store for reading: `len(store)`, `store[i]`, `store.labels`. Many threads may read at once.

    Nothing is ever written, so the folder may be read-only. Raises `DataError` for a file that is missing,
    is no store, was cut, or was not written to its end.
    """

    labels: NDArray[np.int64]
    """The labels of all records in order, int64 [n], read-only."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        try:
            self._env = _open_environment(self.path)
            pages_bytes = (self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"]
            if (
                self.path.stat().st_size < pages_bytes
            ):  # reading past the end of a mapped file kills the process
                raise DataError(f"{self.path}: the file was cut; prepare the data set again")
            with self._env.begin() as transaction:
                labels = transaction.get(_LABELS_KEY)
        except (OSError, lmdb.Error) as error:
            raise DataError(f"{self.path}: not a readable store ({_reason(error)})") from error
        if labels is None or self._env.stat()["entries"] != len(labels) // 8 + 1:
            raise DataError(f"{self.path}: the store was not written to its end; prepare the data set again")
        self.labels = np.frombuffer(labels, "<i8").astype(np.int64)
        self.labels.setflags(write=False)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Record:
        if not 0 <= index < len(self.labels):
            raise IndexError(f"record {index} of a store of {len(self.labels)}")
        try:
            with self._env.begin() as transaction:
                value = transaction.get(_key(int(index)))
        except lmdb.Error as error:
            raise DataError(f"{self.path}: record {index} is unreadable ({_reason(error)})") from error
        if value is None:
            raise DataError(f"{self.path}: record {index} is missing; prepare the data set again")
        return decode_record(value)


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
        facts = {split: description["splits"][split] for split in SPLITS}
        files = {split: path / str(facts[split]["file"]) for split in SPLITS}
        sizes = {split: int(facts[split]["file_bytes"]) for split in SPLITS}
        counts = {split: int(facts[split]["images"]) for split in SPLITS}
        fingerprint = str(description["fingerprint"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path / DATASET_FILE}: damaged ({error!r}); prepare the data set again") from error
    for split in SPLITS:
        if not files[split].is_file() or files[split].stat().st_size != sizes[split]:
            raise DataError(
                f"{files[split]}: missing, or not of the {sizes[split]} bytes that {DATASET_FILE} tells; "
                "prepare the data set again"
            )
    splits = {split: Store(files[split]) for split in SPLITS}
    for split, store in splits.items():
        if len(store) != counts[split]:
            raise DataError(f"{store.path}: {len(store)} records, {DATASET_FILE} tells {counts[split]}")
    return Dataset(path, classes, fingerprint, splits, description)


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
        raise DataError(f"{file}: unreadable ({_reason(error)})") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise DataError(f"{file}: not the description of a prepared data set")
    if description.get("version") != FORMAT_VERSION:
        raise DataError(
            f"{file}: format version {description.get('version')!r}, this version of ddltrain reads "
            f"{FORMAT_VERSION}; prepare the data set again"
        )
    return description


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
