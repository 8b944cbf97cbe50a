"""The images in memory: a whole set that the ranks of a host share, or the records that one rank evaluates.

`sharded.py` has the third kind, for training sets that do not fit one host.
"""

import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ddltrain.errors import DataError
from ddltrain.input.hosts import Hosts
from ddltrain.input.order import Ints, StepPlan, Visits, epoch_order
from ddltrain.input.region import Region
from ddltrain.input.shard_reader import Take

CHUNK_BYTES = 16 << 20  # read at a time
_NUM_READERS = 4  # some copy while others wait for the disk, or for pages

Progress = Callable[[int, int, float], None]
"""Told while images are loaded: bytes done and in all, of this host, and seconds since the start."""


class HasImage(Protocol):
    """The part of a record that is decoded."""

    @property
    def image(self) -> bytes:
        """The packed image."""


class Source(Protocol):
    """Where images are read from: a `Store`."""

    @property
    def labels(self) -> NDArray[np.integer]:
        """The label of each record."""

    @property
    def sizes(self) -> NDArray[np.integer]:
        """The bytes of each record's packed image."""

    def __getitem__(self, index: int) -> HasImage:
        """One record, wherever it lies."""

    def read(self, first: int, last: int, take: Take) -> None:
        """Give the images of records first to last - 1 to `take`, a few at a time."""

    def read_into(self, first: int, last: int, block: NDArray[np.uint8]) -> None:
        """Write the images of records first to last - 1 into `block`, one right after another."""


@dataclass(frozen=True)
class Held:
    """The records that this rank visits in an epoch, and where they lie.

    Attributes:
        block: uint8; valid until the memory is asked for another epoch.
        records: int32 [n], in the order of the visits.
        sizes: bytes of every record of the set.
        starts: where in the block a part of the visits begin, int64.
        early: gives the bytes of records, one after another, as long as the block is not filled; then None.
    """

    block: NDArray[np.uint8]
    records: NDArray[np.int32]
    sizes: NDArray[np.integer]
    starts: Callable[[slice], Ints]
    early: Callable[[NDArray[np.int32]], NDArray[np.uint8] | None] | None = None

    def batch(self, part: slice) -> tuple[NDArray[np.uint8], Ints, Ints]:
        """A block that holds a part of the visited records, where they begin in it, and their sizes."""
        records = self.records[part]
        sizes = self.sizes[records].astype(np.int64)
        early = self.early(records) if self.early is not None else None
        if early is not None:
            return early, np.cumsum(sizes) - sizes, sizes
        return self.block, self.starts(part), sizes


class Memory(Protocol):
    """What a loader takes its images from."""

    def open(self, epoch: int) -> Held:
        """What this rank visits in an epoch; loads the images if they are not there yet. Collective."""

    def passed(self, num_batches: int) -> None:
        """The first `num_batches` batches of the epoch that was opened are decoded."""

    def close(self) -> None:
        """End what goes on in the background. Collective."""


class WholeSet:
    """All records of a set, once a host, in memory without a name: it is gone when the last of the ranks ends, in whatever way.

    | is each rank done, int64 [ranks] | where each record begins, int64 [n + 1] | to a whole page | images, one after another |

    The ranks of a host share the reading, in the background; what the first steps need before all is there, they read by themselves.
    """

    def __init__(
        self, source: Source, hosts: Hosts, plan: StepPlan, seed: int, progress: Progress | None = None
    ) -> None:
        self._source, self._hosts, self._plan, self._seed = source, hosts, plan, seed
        self._progress = progress
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._is_filled = self._is_closed = False
        self._loaded = (0, 0.0)  # bytes of this rank's share, and seconds

    def open(self, epoch: int) -> Held:
        if self._thread is None:
            self._map(self._shared_file())
            self._thread = threading.Thread(target=self._load, name="load", daemon=True)
            self._thread.start()
        order = epoch_order(self._plan.num_records, self._seed, epoch)
        records = order[self._plan.visits(self._hosts.rank).positions()]
        return Held(
            self._block, records, self._source.sizes, lambda part: self._starts[records[part]], self._early
        )

    def passed(self, num_batches: int) -> None:
        """All stays."""

    def close(self) -> None:
        self._is_closed = True
        if self._thread is not None:
            self._thread.join()

    def _early(self, records: NDArray[np.int32]) -> NDArray[np.uint8] | None:
        if self._is_filled:
            return None
        if self._error is not None:
            raise self._error
        self._is_filled = bool(self._done.all())
        if self._progress is not None:
            share = len(self._hosts.own_ranks)
            done = self._image_bytes if self._is_filled else self._loaded[0] * share
            self._progress(min(done, self._image_bytes), self._image_bytes, self._loaded[1])
        if self._is_filled:
            return None
        return np.frombuffer(b"".join(self._source[record].image for record in records.tolist()), np.uint8)

    def _shared_file(self) -> int:
        """A descriptor of the host's memory file, which its first rank makes and the others open through that process."""
        sizes = self._source.sizes
        self._index_bytes = _pages_bytes(8 * (len(self._hosts.own_ranks) + len(sizes) + 1))
        self._image_bytes = int(sizes.sum(dtype=np.int64))
        descriptor = -1
        with self._hosts.agreed():
            if self._hosts.local_rank == 0:
                descriptor = _new_file(self._index_bytes + _pages_bytes(self._image_bytes))
                index = np.zeros(self._index_bytes // 8, np.int64)
                np.cumsum(sizes, out=index[len(self._hosts.own_ranks) + 1 :][: len(sizes)])
                _write(descriptor, 0, [index.data.cast("B")])
        if self._hosts.comm is not None:
            process, number = self._hosts.comm.bcast((os.getpid(), descriptor))
            with self._hosts.agreed():
                if self._hosts.local_rank > 0:
                    descriptor = _open_file(process, number)
        return descriptor

    def _map(self, descriptor: int) -> None:
        self._file = descriptor
        memory = mmap.mmap(descriptor, self._index_bytes + _pages_bytes(self._image_bytes))
        num_ranks, num_records = len(self._hosts.own_ranks), len(self._source.sizes)
        self._done = np.frombuffer(memory, np.int64, num_ranks)
        self._starts = np.frombuffer(memory, np.int64, num_records + 1, 8 * num_ranks)
        self._block = np.frombuffer(memory, np.uint8, self._image_bytes, self._index_bytes)

    def _load(self) -> None:
        """Read this rank's share of the records, about as many bytes as those of the host's other ranks."""
        local, num_ranks = self._hosts.local_rank, len(self._hosts.own_ranks)
        cuts = np.searchsorted(self._starts, self._image_bytes * np.arange(num_ranks + 1) // num_ranks)
        first, last = (
            int(cuts[local]),
            int(cuts[local + 1]) if local + 1 < num_ranks else len(self._starts) - 1,
        )
        start_s = time.perf_counter()
        try:
            with ThreadPoolExecutor(_NUM_READERS, thread_name_prefix="read") as pool:
                for done in pool.map(self._load_chunk, chunks(self._starts, first, last, CHUNK_BYTES)):
                    self._loaded = self._loaded[0] + done, time.perf_counter() - start_s
            self._done[local] = not self._is_closed
        except BaseException as error:  # noqa: BLE001 - raised where the next batch is asked for
            self._error = error
        finally:
            os.close(self._file)

    def _load_chunk(self, chunk: tuple[int, int]) -> int:
        """Read records chunk[0] to chunk[1] - 1. Returns their bytes."""
        if self._is_closed:
            return 0
        start, stop = self._starts[list(chunk)].tolist()
        offset = self._index_bytes + start

        def write(images: list[memoryview]) -> None:
            nonlocal offset
            offset += _write(self._file, offset, images)

        self._source.read(*chunk, write)
        return int(stop - start)


class OwnPart:
    """The records that this rank evaluates, in memory of its own."""

    def __init__(self, source: Source, hosts: Hosts, visits: Visits) -> None:
        self._source, self._hosts, self._visits = source, hosts, visits
        self._held: Held | None = None

    def open(self, epoch: int) -> Held:
        """The same in all epochs."""
        if self._held is None:
            with self._hosts.agreed():
                self._held = self._load()
        return self._held

    def passed(self, num_batches: int) -> None:
        """All stays."""

    def close(self) -> None:
        """Nothing goes on in the background."""

    def _load(self) -> Held:
        records = self._visits.positions()
        sizes = self._source.sizes[records].astype(np.int64)
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        region = Region(int(starts[-1]))
        edges = self._visits.edges()
        for batch, (first, last) in enumerate(zip(self._visits.first, self._visits.stop, strict=True)):
            start, stop = starts[edges[batch : batch + 2]].tolist()
            self._source.read_into(int(first), int(last), region.block[start:stop])
        return Held(
            region.block, records.astype(np.int32), self._source.sizes, lambda part: starts[:-1][part]
        )


def chunks(starts: Ints, first: int, last: int, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut records first to last - 1 into runs of about `chunk_bytes`, at least one record each; `starts` says where each begins."""
    while first < last:
        full = int(np.searchsorted(starts, starts[first] + chunk_bytes, "right")) - 1
        stop = min(last, max(first + 1, full))
        yield first, stop
        first = stop


def _new_file(num_bytes: int) -> int:
    try:
        descriptor = os.memfd_create("ddltrain-images", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, num_bytes)
    except OSError as error:
        raise DataError(f"no memory file of {num_bytes} bytes on this host: {error.strerror}") from error
    return descriptor


def _open_file(process: int, number: int) -> int:
    try:
        return os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise DataError(
            f"the ranks of a host cannot share memory ({error.strerror}); start them as one user, in one container"
        ) from error


def _write(descriptor: int, offset: int, images: list[memoryview]) -> int:
    """Write images one after another into the memory file. Returns their bytes.

    A call costs less than stores into the mapped file, which fault at each page; and a lack of memory is an error here, and a
    SIGBUS there.
    """
    num_bytes = sum(map(len, images))
    try:
        written = os.pwritev(descriptor, images, offset)
        while written < num_bytes:
            written += os.pwrite(descriptor, b"".join(images)[written:], offset + written)
    except OSError as error:
        raise DataError(
            f"memory ran out while images were loaded ({error.strerror}); use more hosts, or prepare smaller pictures "
            "(--size shorter=256)"
        ) from error
    return num_bytes


def _pages_bytes(num_bytes: int) -> int:
    return -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
