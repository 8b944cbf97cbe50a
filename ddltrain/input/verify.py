"""Checks a prepared data set against what its description tells, down to the pixels of each record."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from ddltrain.errors import DataError
from ddltrain.input import _image
from ddltrain.input.folders import printable
from ddltrain.input.prepare_report import REPORT_FILE
from ddltrain.input.record import Shard, decode_record, record_digest
from ddltrain.input.shard_reader import open_shard
from ddltrain.input.shards import hash_file
from ddltrain.input.store import (
    DATASET_FILE,
    SPLITS,
    Store,
    fingerprint_of,
    read_description,
    read_shards,
)

Progress = Callable[[str, int, int], None]
"""Called after each shard with "shards", those done and their total."""

_CHUNK_RECORDS = 256  # read and checked by one thread at a time


def verify(path: Path, num_workers: int, on_progress: Progress) -> list[str]:
    """Checks every file, every checksum and every record of the data set in the folder `path`.

    Returns:
        What is wrong, a line each; nothing if all is well.

    Raises:
        DataError: there is no data set of this version.
    """
    description = read_description(path)
    try:
        shards = {split: read_shards(description, split) for split in SPLITS}
        per_class = {split: list(map(int, description["splits"][split]["per_class"])) for split in SPLITS}
        num_classes, fingerprint = len(description["classes"]), str(description["fingerprint"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path / DATASET_FILE}: damaged ({error!r}); prepare the data set again") from error
    problems = _check_names(path, [shard.file for split in SPLITS for shard in shards[split]])
    total, done = sum(map(len, shards.values())), 0
    for split in SPLITS:
        first = 0
        for shard in shards[split]:
            problems += _check_shard(path / shard.file, shard, first, num_classes, num_workers)
            first, done = first + shard.images, done + 1
            on_progress("shards", done, total)
    return problems or _check_whole(path, shards, per_class, description["classes"], fingerprint)


def _check_names(path: Path, files: list[str]) -> list[str]:
    """What there is too much in the folder; missing shards are told where they are checked."""
    extra = sorted(set(os.listdir(path)) - {DATASET_FILE, REPORT_FILE, *files})
    return [f"{printable(name)}: not part of the data set" for name in extra]


def _check_shard(file: Path, shard: Shard, first: int, num_classes: int, num_workers: int) -> list[str]:
    if not file.is_file():
        return [f"{shard.file}: missing"]
    if (size := file.stat().st_size) != shard.file_bytes:
        return [f"{shard.file}: {size} bytes, not the {shard.file_bytes} that {DATASET_FILE} tells"]
    try:
        if hash_file(file) == shard.sha256:
            return check_records(file, shard.images, first, num_classes, num_workers)
    except OSError as error:
        return [f"{shard.file}: unreadable ({error.strerror})"]
    # Where pages of the file are damaged, LMDB may end the process that reads them.
    problems = [f"{shard.file}: damaged, its SHA-256 is not the one that {DATASET_FILE} tells"]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as child:
        try:
            return (
                problems
                + child.submit(check_records, file, shard.images, first, num_classes, num_workers).result()
            )
        except BrokenProcessPool:
            return [*problems, f"{shard.file}: its records cannot be found any more"]


def check_records(file: Path, count: int, first: int, num_classes: int, num_workers: int) -> list[str]:
    """Reads and decodes all records of a shard whose first one is record `first` of its split; returns what is wrong."""
    try:
        store = Store([file], first)
        digests = store.digests()
    except DataError as error:
        return [str(error)]
    if len(store) != count:
        return [f"{file.name}: {len(store)} records, {DATASET_FILE} tells {count}"]

    def check(start: int) -> list[str]:
        places = range(start, min(start + _CHUNK_RECORDS, count))
        return [
            problem
            for place in places
            for problem in _check_record(store, place, digests[place].tobytes(), num_classes)
        ]

    with open_shard(file), ThreadPoolExecutor(num_workers) as pool:
        return [problem for part in pool.map(check, range(0, count, _CHUNK_RECORDS)) for problem in part]


def _check_record(store: Store, place: int, digest: bytes, num_classes: int) -> Iterator[str]:
    where = f"{store.files[0].name}: record {store.first + place}"
    try:
        value = store.value(place)
    except DataError as error:
        yield str(error)
        return
    if record_digest(value) != digest:
        yield f"{where}: damaged, its checksum differs"
        return
    record = decode_record(value)
    where += f" ({printable(record.name)})"
    if not 0 <= record.label < num_classes or record.label != store.labels[place]:
        yield f"{where}: label {record.label}, of {num_classes} classes"
    if len(record.image) != store.sizes[place]:
        yield f"{where}: an image of {len(record.image)} bytes, not {store.sizes[place]}"
    yield from _check_image(where, record.image)


def _check_image(where: str, image: bytes) -> Iterator[str]:
    try:
        _, width, height, _, _ = _image.info(image)
        pixels = _image.decode_rgb(image)
    except (ValueError, RuntimeError) as error:
        yield f"{where}: does not decode ({error})"
        return
    if pixels.shape != (height, width, 3):
        yield f"{where}: decodes to {pixels.shape[1]}x{pixels.shape[0]} pixels, not {width}x{height}"


def _check_whole(
    path: Path,
    shards: dict[str, list[Shard]],
    per_class: dict[str, list[int]],
    classes: list[str],
    fingerprint: str,
) -> list[str]:
    """Checks what holds for all records together, once each of them is right."""
    problems = []
    stores = {split: Store([path / shard.file for shard in shards[split]]) for split in SPLITS}
    for split, store in stores.items():
        if np.bincount(store.labels, minlength=len(classes)).tolist() != per_class[split]:
            problems.append(f"{split}: the images of each class are not as many as {DATASET_FILE} tells")
    if fingerprint_of(classes, stores) != fingerprint:
        problems.append(f"{DATASET_FILE}: the fingerprint is not that of the records")
    return problems
