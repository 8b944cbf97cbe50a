"""Reads shards: opens them, and hands on records in the order of the disk."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
from numpy.typing import NDArray

from ddltrain.errors import DataError
from ddltrain.input.record import image_of, record_key

_PAGE_BYTES = 4096
_AHEAD_BYTES = 32 << 20  # asked of the disk before it is needed
_TAKE_BYTES = 1 << 20  # handed on at once, about
_TAKE_IMAGES = 1024  # at most: a system call takes no more pieces

Take = Callable[[list[memoryview]], None]
"""Gets images that follow one another. They are valid during the call."""


class ReadAhead:
    """Asks the system to read on behind the place of reading, so that the disk is busy while records are taken."""

    def __init__(self, file: Path, sizes: NDArray[np.int32], low: int, high: int) -> None:
        # Records lie in order, so the share of the bytes before a record tells its place in the file, nearly.
        before = int(sizes[:low].sum(dtype=np.int64)) + low * _PAGE_BYTES
        ends = before + np.cumsum(sizes[low:high] + _PAGE_BYTES, dtype=np.int64)
        total = int(sizes.sum(dtype=np.int64)) + len(sizes) * _PAGE_BYTES
        file_bytes = os.stat(file).st_size
        self._places = (ends * (file_bytes / total)).astype(np.int64)
        self._asked = max(0, int(before * (file_bytes / total)) - _AHEAD_BYTES // 4)
        self._descriptor = os.open(file, os.O_RDONLY)

    def reached(self, number: int) -> None:
        """Tells that record `number` of the range is next."""
        place = int(self._places[number])
        if place + _AHEAD_BYTES // 2 > self._asked:
            os.posix_fadvise(
                self._descriptor, self._asked, place + _AHEAD_BYTES - self._asked, os.POSIX_FADV_WILLNEED
            )
            self._asked = place + _AHEAD_BYTES

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)


def take_records(file: Path, first: int, sizes: NDArray[np.int32], take: Take, ahead: ReadAhead) -> None:
    """Hands on the packed images of the records from `first` on; raises `DataError` if one has not its size."""
    count = min(_TAKE_IMAGES, max(1, _TAKE_BYTES * len(sizes) // max(1, int(sizes.sum(dtype=np.int64)))))
    with open_shard(file) as env, env.begin(buffers=True) as transaction, transaction.cursor() as cursor:
        values = cursor.iternext(keys=False) if cursor.set_key(record_key(first)) else iter(())
        for start in range(0, len(sizes), count):
            ahead.reached(start)
            images = [image_of(value) for value in islice(values, min(count, len(sizes) - start))]
            for number, size in enumerate(sizes[start : start + count].tolist()):
                if number == len(images) or len(images[number]) != size:
                    raise DataError(
                        f"{file}: record {first + start + number} is damaged; prepare the data set again"
                    )
            take(images)


@dataclass
class _Shared:
    """An open shard and how many use it."""

    env: lmdb.Environment
    users: int = 0


# LMDB must not open one file twice in a process, so all that read a shard at once share an environment.
_open_shards: dict[str, _Shared] = {}
_open_shards_lock = threading.Lock()


@contextmanager
def open_shard(file: Path) -> Iterator[lmdb.Environment]:
    """Opens a shard for reading as long as the block lasts; raises `DataError` if it is missing, is none, or was cut.

    Shards are not kept open beyond their use: large sets have more than a process may have files.
    """
    real = os.path.realpath(file)
    with _open_shards_lock:
        shared = _open_shards.get(real) or _Shared(_open_environment(file, real))
        _open_shards[real] = shared
        shared.users += 1
    try:
        yield shared.env
    finally:
        with _open_shards_lock:
            shared.users -= 1
            if not shared.users:
                del _open_shards[real]
                shared.env.close()


def _open_environment(file: Path, real: str) -> lmdb.Environment:
    try:
        env = lmdb.open(real, subdir=False, readonly=True, lock=False, create=False)
        pages_bytes = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
        is_cut = os.stat(file).st_size < pages_bytes
    except (OSError, lmdb.Error) as error:
        raise DataError(f"{file}: not a readable store ({reason(error)})") from error
    if is_cut:  # reading past the end of a mapped file kills the process
        env.close()
        raise DataError(f"{file}: the file was cut; prepare the data set again")
    return env


def read_array(env: lmdb.Environment, file: Path, key: bytes, kind: str = "<i4") -> NDArray[Any]:
    """One of the arrays behind the records of a shard; raises `DataError`."""
    try:
        with env.begin() as transaction:
            value = transaction.get(key)
    except lmdb.Error as error:
        raise DataError(f"{file}: not a readable store ({reason(error)})") from error
    if value is None:
        raise DataError(f"{file}: the shard was not written to its end; prepare the data set again")
    return np.frombuffer(value, kind)


def reason(error: Exception) -> str:
    """What went wrong, in the words of the system."""
    return getattr(error, "strerror", None) or str(error)
