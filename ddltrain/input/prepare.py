"""Turns a source of labelled images into a prepared data set: two stores and `dataset.json`."""

import hashlib
import json
import os
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lmdb

from ddltrain.errors import DataError
from ddltrain.input.folders import printable
from ddltrain.input.images import ImageError, Normalized, normalize
from ddltrain.input.publish import LOCK_FILE, clear_leftover, partial_folder, publish, write_file
from ddltrain.input.sources import Item, Source, SplitOptions, find_source
from ddltrain.input.store import (
    DATASET_FILE,
    FORMAT,
    FORMAT_VERSION,
    SPLITS,
    Record,
    StoreWriter,
    encode_record,
    open_dataset,
)

_SHOWN_BAD = 20
_FULL_DISK_BYTES = 64 << 20  # less free than this cannot take the next transaction and its overhead
_AHEAD_PER_WORKER = 4  # images read ahead of the writer

Progress = Callable[[str, int, int], None]
"""Called after each image with the split, the images done and their total."""


@dataclass(frozen=True)
class PrepareOptions:
    """How to prepare; `num_workers` (threads) changes nothing but the time it takes."""

    split: SplitOptions
    skip_bad: bool = False
    force: bool = False
    num_workers: int = 1


@dataclass(frozen=True)
class Outcome:
    """The description of the data set as in `dataset.json`, and whether it was there already."""

    description: dict[str, Any]
    was_up_to_date: bool


@dataclass
class _SplitFacts:
    """What the description tells of a split; sizes are (width, height), smallest and largest by area."""

    images: int = 0
    image_bytes: int = 0
    per_class: list[int] = field(default_factory=list)
    smallest: tuple[int, int] | None = None
    largest: tuple[int, int] | None = None
    kept: Counter[str] = field(default_factory=Counter)
    converted: Counter[str] = field(default_factory=Counter)

    def add(self, label: int, image: Normalized) -> None:
        self.images += 1
        self.image_bytes += len(image.image)
        self.per_class[label] += 1
        (self.converted if image.converted else self.kept)[image.kind] += 1
        size = (image.width, image.height)
        self.smallest = min(self.smallest or size, size, key=_by_area)
        self.largest = max(self.largest or size, size, key=_by_area)

    def as_dict(self, file: Path) -> dict[str, Any]:
        counts = {"kept": dict(sorted(self.kept.items())), "converted": dict(sorted(self.converted.items()))}
        return {**vars(self), **counts, "file": file.name, "file_bytes": file.stat().st_size}


def _by_area(size: tuple[int, int]) -> tuple[int, int]:
    return (size[0] * size[1], size[0])


def prepare(source: str, out: Path, options: PrepareOptions, on_progress: Progress) -> Outcome:
    """Prepares the data set `out` from `source`; does nothing if it is there already and nothing has changed.

    The result does not depend on `num_workers`. Until the end there is no `out`, or the former one. Raises
    `DataError`; then, and when interrupted, nothing is left behind but the list of bad images, `OUT.bad.txt`.
    """
    out = Path(os.path.realpath(out))
    _read_own(out)  # a folder that must not be touched is told before the source is looked at
    try:
        found = find_source(source, options.split)
    except OSError as error:
        raise DataError(f"{source}: cannot be read ({error})") from error
    if Path(found.path).is_dir() and out.is_relative_to(os.path.realpath(found.path)):
        raise DataError(f"{out}: lies inside the source {source}; choose an OUT outside it")
    if present := _present(out, found, options):
        clear_leftover(out)
        return Outcome(present, was_up_to_date=True)
    with partial_folder(out) as partial:
        if present := _present(out, found, options):  # another process has just made it
            return Outcome(present, was_up_to_date=True)
        try:
            description = _build(found, partial, out, options, on_progress)
            publish(partial, out, replace=options.force)
        except (OSError, lmdb.Error) as error:
            reason = _write_failure(error, partial)
            raise DataError(f"{out}: cannot be written ({reason}); nothing is left of it") from error
    _bad_file(out).unlink(missing_ok=True)
    return Outcome(description, was_up_to_date=False)


def _write_failure(error: OSError | lmdb.Error, folder: Path) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    # LMDB tells of a full disk as an input/output error.
    is_full = folder.exists() and shutil.disk_usage(folder).free < _FULL_DISK_BYTES
    return "the disk is full" if is_full else str(error)


def _bad_file(out: Path) -> Path:
    return out.with_name(out.name + ".bad.txt")


def _read_own(out: Path) -> dict[str, Any] | None:
    """The description in `out`, None if there is nothing; raises `DataError` if something else is there."""
    try:
        if not os.listdir(out):
            return None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{out}: not a folder to write to ({error.strerror}); choose another OUT") from error
    try:
        description = json.loads((out / DATASET_FILE).read_text("utf-8"))
        if description["format"] == FORMAT:
            return dict(description)
    except (OSError, ValueError, TypeError, KeyError):
        pass  # whatever it is, it is not ours
    raise DataError(f"{out}: exists and is not a prepared data set; choose another OUT, or remove it first")


def _present(out: Path, source: Source, options: PrepareOptions) -> dict[str, Any] | None:
    """The description of `out` if it is what would be made; None if it is to be made; else `DataError`."""
    present = _read_own(out)
    if present is None:
        return None
    if options.force:
        ours = {DATASET_FILE, LOCK_FILE, *(f"{split}.lmdb" for split in SPLITS)}
        if others := sorted({entry.name for entry in out.iterdir()} - ours):
            raise DataError(f"{out}: holds other files ({printable(others[0])}); move them before --force")
        return None
    difference = _difference(present, source, options)
    try:
        open_dataset(out)
    except DataError as error:
        difference = difference or str(error)
    if difference is None:
        return present
    raise DataError(f"{out}: exists already, and {difference}; add --force to replace it")


def _difference(present: dict[str, Any], source: Source, options: PrepareOptions) -> str | None:
    made_from, made_with = present.get("source", {}), present.get("options", {})
    has_changed = (made_from.get("kind"), made_from.get("signature")) != (source.kind, source.signature)
    if has_changed and made_from.get("path") != source.path:
        return f"was made from {made_from.get('path')}"
    for name, value in options.split.as_dict().items():
        if made_with.get(name) != value:
            return f"was made with {name} = {made_with.get(name)}, not {value}"
    if has_changed:
        return "the source has changed since"
    if present.get("skipped") and not options.skip_bad:
        return f"was made with --on-bad skip, without {len(present['skipped'])} images"
    return None


def _build(
    source: Source, partial: Path, out: Path, options: PrepareOptions, on_progress: Progress
) -> dict[str, Any]:
    """Writes the stores and the description into `partial`; returns the description."""
    digest = hashlib.sha256(json.dumps(source.classes).encode())
    bad: list[tuple[str, str]] = []
    facts: dict[str, dict[str, Any]] = {}
    pool = ThreadPoolExecutor(options.num_workers)
    try:
        for split in SPLITS:
            results = _in_order(pool, source.splits[split], options.num_workers * _AHEAD_PER_WORKER)
            total = len(source.splits[split])
            split_facts = _SplitFacts(per_class=[0] * len(source.classes))
            digest.update(split.encode())
            with StoreWriter(partial / f"{split}.lmdb") as writer:
                for done, (item, result) in enumerate(results, start=1):
                    if isinstance(result, ImageError):
                        bad.append((item.name, str(result)))
                    elif options.skip_bad or not bad:  # else only check on
                        record = Record(item.name, item.label, result.image)
                        writer.append(record)
                        _update(digest, record)
                        split_facts.add(item.label, result)
                    on_progress(split, done, total)
            facts[split] = split_facts.as_dict(partial / f"{split}.lmdb")
    finally:
        pool.shutdown(cancel_futures=True)
    _judge(source, out, bad, facts, options)
    description = _describe(source, options, facts, bad, digest.hexdigest())
    write_file(partial / DATASET_FILE, json.dumps(description, indent=1) + "\n")
    return description


def _in_order(
    pool: ThreadPoolExecutor, items: Iterable[Item], ahead: int
) -> Iterator[tuple[Item, Normalized | ImageError]]:
    """The items with their results, in order; no more than `ahead` are held, so memory stays bounded."""
    waiting: deque[tuple[Item, Future[Normalized | ImageError]]] = deque()
    for item in items:
        waiting.append((item, pool.submit(_normalize, item)))
        if len(waiting) > ahead:
            first, result = waiting.popleft()
            yield first, result.result()
    for first, result in waiting:
        yield first, result.result()


def _normalize(item: Item) -> Normalized | ImageError:
    try:
        return normalize(item.read())
    except ImageError as error:
        return error


def _update(digest: "hashlib._Hash", record: Record) -> None:
    value = encode_record(record)
    digest.update(len(value).to_bytes(8, "little"))
    digest.update(value)


def _judge(
    source: Source,
    out: Path,
    bad: list[tuple[str, str]],
    facts: dict[str, dict[str, Any]],
    options: PrepareOptions,
) -> None:
    """Raises `DataError` if what was found does not make a data set."""
    if bad and not options.skip_bad:
        lines = [f"{printable(name)}\t{reason}\n" for name, reason in bad]
        write_file(_bad_file(out), "".join(lines))
        shown = "".join("  " + line.replace("\t", ": ") for line in lines[:_SHOWN_BAD])
        more = f"  ... and {len(bad) - _SHOWN_BAD} more\n" if len(bad) > _SHOWN_BAD else ""
        total = sum(len(items) for items in source.splits.values())
        raise DataError(
            f"{len(bad)} of {total} images of {source.path} are unusable:\n{shown}{more}"
            f"All are listed in {_bad_file(out)}. Mend or remove them, or leave them out with --on-bad skip."
        )
    if empty := [source.classes[c] for c, count in enumerate(facts["train"]["per_class"]) if not count]:
        raise DataError(f"no usable train image is left of the class {', '.join(map(printable, empty[:10]))}")
    if not facts["val"]["images"]:
        raise DataError(f"{source.path}: no usable val image is left")


def _describe(
    source: Source,
    options: PrepareOptions,
    facts: dict[str, dict[str, Any]],
    bad: list[tuple[str, str]],
    fingerprint: str,
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "fingerprint": fingerprint,
        "source": {"kind": source.kind, "path": source.path, "signature": source.signature},
        "options": options.split.as_dict(),
        "classes": source.classes,
        "splits": facts,
        "warnings": source.warnings,
        "ignored": [{"name": name, "reason": reason} for name, reason in source.ignored],
        "skipped": [{"name": name, "reason": reason} for name, reason in bad],
    }
