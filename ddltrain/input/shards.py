"""Writes the records of a split into shards: LMDB files of bounded size, `train-00000.lmdb` and so on.

Record i of the split lies under the key i, in whichever shard it is. Behind its records a shard holds, as arrays, their
labels (int32), the sizes of their packed images (int32) and their digests (16 bytes each). The arrays are written last:
a shard without them is not whole.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import lmdb
import numpy as np

from ddltrain.input.record import (
    DIGESTS_KEY,
    LABELS_KEY,
    SHARD_BYTES,
    SIZES_KEY,
    Record,
    Shard,
    encode_record,
    record_digest,
    record_key,
)

PAGE_BYTES = 4096
_BATCH_BYTES = 32 << 20  # one LMDB transaction; also what is held to be written again when the map must grow
_BATCH_RECORDS = 4096
_HASH_BYTES = 1 << 20


class StoreWriter:
    """Writes one split into `folder`, record by record; a context manager that finishes the last shard at its end.

    A shard is finished, and safe on the disk, when the next record would make it larger than `shard_bytes`; only a record
    that is larger by itself makes a larger one. The same records and `shard_bytes` give the same files.

    `finished` are the shards of a former writer to go on behind. Raises `OSError` or `lmdb.Error` where the disk does not take the data.
    """

    shards: list[Shard]
    """The finished shards, in order."""

    def __init__(
        self,
        folder: Path,
        split: str,
        shard_bytes: int = SHARD_BYTES,
        finished: Sequence[Shard] = (),
        map_bytes: int = 64 << 20,
    ) -> None:
        self.shards = list(finished)
        self._folder = folder
        self._split = split
        self._shard_bytes = shard_bytes
        self._map_bytes = map_bytes
        self._next = sum(shard.images for shard in finished)
        self._open: _ShardWriter | None = None

    def append(self, record: Record) -> Shard | None:
        """Adds `record` as the next one; returns the shard before it, if that one was full and is now finished."""
        value = encode_record(record)
        full = None
        if self._open is not None and self._open.used_bytes + _pages_bytes(len(value)) > self._shard_bytes:
            full = self._finish()
        if self._open is None:
            file = self._folder / f"{self._split}-{len(self.shards):05d}.lmdb"
            self._open = _ShardWriter(file, self._next, self._map_bytes)
        self._open.append(value, record.label, len(record.image))
        self._next += 1
        return full

    def _finish(self) -> Shard | None:
        if self._open is None:
            return None
        shard = self._open.finish()
        self._open = None
        self.shards.append(shard)
        return shard

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            if self._open is not None:
                self._open.close()


class _ShardWriter:
    """One shard being written; its first record is number `first` of the split. The map doubles when it is full."""

    def __init__(self, file: Path, first: int, map_bytes: int) -> None:
        self.used_bytes = 0
        self._file = file
        self._next = first
        self._map_bytes = map_bytes
        file.unlink(missing_ok=True)  # what a killed process left half-written
        # Nothing reads the file before it is complete: one sync at the end is enough.
        self._env = lmdb.open(
            os.fspath(file), subdir=False, map_size=map_bytes, lock=False, sync=False, metasync=False
        )
        self._pending: list[tuple[bytes, bytes]] = []
        self._pending_bytes = 0
        self._labels: list[int] = []
        self._sizes: list[int] = []
        self._digests: list[bytes] = []

    def append(self, value: bytes, label: int, image_bytes: int) -> None:
        self._pending.append((record_key(self._next), value))
        self._pending_bytes += len(value)
        self._next += 1
        self.used_bytes += _pages_bytes(len(value))
        self._labels.append(label)
        self._sizes.append(image_bytes)
        self._digests.append(record_digest(value))
        if self._pending_bytes >= _BATCH_BYTES or len(self._pending) >= _BATCH_RECORDS:
            self._flush()

    def finish(self) -> Shard:
        self._flush()
        self._pending = [
            (DIGESTS_KEY, b"".join(self._digests)),
            (LABELS_KEY, np.array(self._labels, "<i4").tobytes()),
            (SIZES_KEY, np.array(self._sizes, "<i4").tobytes()),
        ]
        self._flush()
        self._env.sync(True)
        self.close()
        return Shard(self._file.name, len(self._labels), self._file.stat().st_size, hash_file(self._file))

    def close(self) -> None:
        self._env.close()

    def _flush(self) -> None:
        while True:
            try:
                with self._env.begin(write=True) as transaction:
                    for key, value in self._pending:
                        transaction.put(key, value, append=True)
                break
            except lmdb.MapFullError:  # the transaction was undone as a whole
                self._map_bytes *= 2
                self._env.set_mapsize(self._map_bytes)
        self._pending.clear()
        self._pending_bytes = 0


def _pages_bytes(value_bytes: int) -> int:
    """What a record takes of a shard: LMDB gives values of more than half a page whole pages of their own."""
    return value_bytes if value_bytes < PAGE_BYTES // 2 else -(-(value_bytes + 16) // PAGE_BYTES) * PAGE_BYTES


def hash_file(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(_HASH_BYTES):
            digest.update(block)
    return digest.hexdigest()
