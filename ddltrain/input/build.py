"""Builds the shards of a data set: reads and packs images with many threads, writes them in order, goes on after a kill."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL

from ddltrain import __version__
from ddltrain.input.files import ImageError
from ddltrain.input.journal import Finished, Journal
from ddltrain.input.packing import Packed, Shape, pack_image
from ddltrain.input.record import SHARD_BYTES, Record, Shard
from ddltrain.input.shards import StoreWriter
from ddltrain.input.splits import Item, Source, SplitOptions
from ddltrain.input.store import FORMAT_VERSION, SPLITS, Store, fingerprint_of
from ddltrain.input.tally import Tally

_AHEAD_PER_WORKER = 4  # images read ahead of the writer

Progress = Callable[[str, int, int], None]
"""Called after each image with the split, the images done and their total."""


@dataclass(frozen=True)
class PrepareOptions:
    """How to prepare; `num_workers` (threads) changes nothing but the time it takes.

    `kind` tells what the source is where that cannot be seen.
    """

    split: SplitOptions
    kind: str | None = None
    shape: Shape = Shape()  # noqa: RUF009 (immutable)
    shard_bytes: int = SHARD_BYTES
    skip_bad: bool = False
    force: bool = False
    num_workers: int = 1

    def recipe(self, source: Source) -> dict[str, Any]:
        """What of it decides on the content of the data set made from `source`."""
        shape = {"size": self.shape.name(), "quality": self.shape.quality}
        return {**source.options.as_dict(), **shape, "shard_bytes": self.shard_bytes}


@dataclass(frozen=True)
class BuiltSplit:
    """The shards of a split, the tally of its images, and how many there are of each class."""

    shards: list[Shard]
    tally: Tally
    per_class: list[int]


def build(
    source: Source, folder: Path, options: PrepareOptions, on_progress: Progress
) -> tuple[dict[str, BuiltSplit], str]:
    """Builds all shards in `folder`; takes up those that a killed preparation of the same source and options finished there.

    The result depends neither on `num_workers` nor on interruptions. Unless bad images are skipped, those behind the first one
    are only checked, and the shards are not complete.

    Returns:
        What was built of each split, and the fingerprint of it all, a SHA-256 over the classes and all records.
    """
    identity = {
        "version": [FORMAT_VERSION, __version__],
        "kind": source.kind,
        "signature": source.signature,
        "recipe": options.recipe(source),
        "pillow": PIL.__version__,
    }
    journal = Journal(folder, identity)
    built = {}
    stores = {}
    pool = ThreadPoolExecutor(options.num_workers, thread_name_prefix="prepare")
    try:
        for split in SPLITS:
            builder = _SplitBuilder(journal, folder, split, options)
            items = source.splits[split]
            results = _in_order(pool, items, builder.next_item, options)
            with builder.writer:
                for item, result in results:
                    builder.add(item, result)
                    on_progress(split, builder.next_item, len(items))
            builder.close()
            stores[split] = Store([folder / shard.file for shard in builder.writer.shards])
            per_class = np.bincount(stores[split].labels, minlength=len(source.classes)).tolist()
            built[split] = BuiltSplit(builder.writer.shards, builder.whole_tally(), per_class)
    finally:
        pool.shutdown(cancel_futures=True)
    journal.remove()
    return built, fingerprint_of(source.classes, stores)


class _SplitBuilder:
    """Writes one split, and notes each finished shard in the journal."""

    def __init__(self, journal: Journal, folder: Path, split: str, options: PrepareOptions) -> None:
        self._journal = journal
        self._split = split
        self._skip_bad = options.skip_bad
        finished = journal.of_split(split)
        self._tallies = [entry.tally for entry in finished]
        self._only_checks = not self._skip_bad and any(part.bad for part in self._tallies)
        self._tally = Tally()
        self.next_item = finished[-1].next_item if finished else 0
        self.writer = StoreWriter(folder, split, options.shard_bytes, [entry.shard for entry in finished])

    def add(self, item: Item, result: Packed | ImageError) -> None:
        """Takes the next item of the split."""
        if isinstance(result, ImageError):
            self._tally.add_bad(item.name, result)
            self._only_checks = not self._skip_bad
        elif not self._only_checks:
            shard = self.writer.append(Record(item.name, item.label, result.image))
            if shard is not None:  # all before this item is safe
                self._note(shard)
            self._tally.add(item.name, result)
        self.next_item += 1

    def close(self) -> None:
        """Notes the last shard, which the writer finished at its end."""
        if not self._only_checks and len(self._tallies) < len(self.writer.shards):
            self._note(self.writer.shards[-1])

    def whole_tally(self) -> Tally:
        """The tally of all items so far."""
        whole = Tally()
        for part in (*self._tallies, self._tally):
            whole.merge(part)
        return whole

    def _note(self, shard: Shard) -> None:
        self._journal.add(Finished(self._split, shard, self.next_item, self._tally))
        self._tallies.append(self._tally)
        self._tally = Tally()


def _in_order(
    pool: ThreadPoolExecutor, items: Sequence[Item], first: int, options: PrepareOptions
) -> Iterator[tuple[Item, Packed | ImageError]]:
    """The items from `first` on with their results, in order; only a few are held, so memory stays bounded."""
    waiting: deque[tuple[Item, Future[Packed | ImageError]]] = deque()
    for index in range(first, len(items)):
        waiting.append((items[index], pool.submit(_pack, items[index], options.shape)))
        if len(waiting) > options.num_workers * _AHEAD_PER_WORKER:
            item, result = waiting.popleft()
            yield item, result.result()
    for item, result in waiting:
        yield item, result.result()


def _pack(item: Item, shape: Shape) -> Packed | ImageError:
    try:
        return pack_image(item.read(), item.name, shape)
    except ImageError as error:
        return error
