"""Turns a source of labelled images into a prepared data set: shards, `dataset.json` and a report."""

import json
import os
import re
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lmdb

from ddltrain.errors import DataError
from ddltrain.input.build import BuiltSplit, PrepareOptions, Progress, build
from ddltrain.input.folders import printable
from ddltrain.input.journal import is_worth_keeping
from ddltrain.input.prepare_report import REPORT_FILE, describe_split, fault_counts, report_text
from ddltrain.input.publish import LOCK_FILE, clear_leftover, partial_folder, publish, write_file
from ddltrain.input.sources import find_source
from ddltrain.input.splits import Source
from ddltrain.input.store import DATASET_FILE, FORMAT, FORMAT_VERSION, open_dataset
from ddltrain.input.tally import Bad

_SHOWN_BAD = 20
_SHOWN_IGNORED = 1000
_FULL_DISK_BYTES = 64 << 20  # less free than this cannot take the next transaction and its overhead
_OUR_SHARDS = re.compile(
    r"(train|val)(-\d{5,})?\.lmdb"
)  # without a number: of the first version of the format


@dataclass(frozen=True)
class Outcome:
    """The description of the data set as in `dataset.json`, and whether it was there already."""

    description: dict[str, Any]
    was_up_to_date: bool


def prepare(source: str, out: Path, options: PrepareOptions, on_progress: Progress) -> Outcome:
    """Prepares the data set `out` from `source`; does nothing if it is there already and nothing has changed.

    The result does not depend on `num_workers`. Until the end there is no `out`, or the former one. Raises `DataError`; then
    nothing is left behind but the list of bad images, `OUT.bad.txt`. After a kill or Ctrl-C the shards that were finished
    stay in a hidden folder beside `out`, and the next preparation goes on behind them if it is the same.
    """
    out = Path(os.path.realpath(out))
    _read_own(out)  # a folder that must not be touched is told before the source is looked at
    try:
        found = find_source(source, options.split, options.kind)
    except OSError as error:
        raise DataError(f"{source}: cannot be read ({error})") from error
    if Path(found.path).is_dir() and out.is_relative_to(os.path.realpath(found.path)):
        raise DataError(f"{out}: lies inside the source {source}; choose an OUT outside it")
    if present := _present(out, found, options):
        clear_leftover(out)
        return Outcome(present, was_up_to_date=True)
    with partial_folder(out, is_worth_keeping) as partial:
        if present := _present(out, found, options):  # another process has just made it
            return Outcome(present, was_up_to_date=True)
        try:
            description = _make(found, partial, out, options, on_progress)
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
        names = {entry.name for entry in out.iterdir()} - {DATASET_FILE, REPORT_FILE, LOCK_FILE}
        if others := sorted(name for name in names if not _OUR_SHARDS.fullmatch(name)):
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
    if present.get("version") != FORMAT_VERSION:
        return f"is of format version {present.get('version')}, which only older versions of ddltrain read"
    made_from, made_with = present.get("source", {}), present.get("options", {})
    has_changed = (made_from.get("kind"), made_from.get("signature")) != (source.kind, source.signature)
    if has_changed and made_from.get("path") != source.path:
        return f"was made from {made_from.get('path')}"
    for name, value in options.recipe(source).items():
        if made_with.get(name) != value:
            return f"was made with {name} = {made_with.get(name)}, not {value}"
    if has_changed:
        return "the source has changed since"
    if present.get("skipped") and not options.skip_bad:
        return f"was made with --on-bad skip, without {len(present['skipped'])} images"
    return None


def _make(
    source: Source, partial: Path, out: Path, options: PrepareOptions, on_progress: Progress
) -> dict[str, Any]:
    """Writes the shards, the description and the report into `partial`; returns the description."""
    built, fingerprint = build(source, partial, options, on_progress)
    bad = [entry for split in built.values() for entry in split.tally.bad]
    _judge(source, out, bad, built, options)
    description = _describe(source, options, built, bad, fingerprint)
    write_file(partial / REPORT_FILE, report_text(description, built, source.ignored))
    write_file(partial / DATASET_FILE, json.dumps(description, indent=1) + "\n")
    return description


def _judge(
    source: Source, out: Path, bad: list[Bad], built: dict[str, BuiltSplit], options: PrepareOptions
) -> None:
    """Raises `DataError` if what was found does not make a data set."""
    if bad and not options.skip_bad:
        lines = [f"{printable(entry.name)}\t{entry.fault}\t{entry.reason}\n" for entry in bad]
        write_file(_bad_file(out), "".join(lines))
        shown = "".join(f"  {printable(entry.name)}: {entry.reason}\n" for entry in bad[:_SHOWN_BAD])
        more = f"  ... and {len(bad) - _SHOWN_BAD} more\n" if len(bad) > _SHOWN_BAD else ""
        total = sum(len(items) for items in source.splits.values())
        raise DataError(
            f"{len(bad)} of {total} images of {source.path} are unusable ({fault_counts(bad)}):\n{shown}{more}"
            f"All are listed in {_bad_file(out)}. Mend or remove them, or leave them out with --on-bad skip."
        )
    if empty := [source.classes[c] for c, count in enumerate(built["train"].per_class) if not count]:
        raise DataError(f"no usable train image is left of the class {', '.join(map(printable, empty[:10]))}")
    if not sum(built["val"].per_class):
        raise DataError(f"{source.path}: no usable val image is left")


def _describe(
    source: Source,
    options: PrepareOptions,
    built: dict[str, BuiltSplit],
    bad: list[Bad],
    fingerprint: str,
) -> dict[str, Any]:
    ignored = [{"name": name, "reason": reason} for name, reason in source.ignored[:_SHOWN_IGNORED]]
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "fingerprint": fingerprint,
        "source": {"kind": source.kind, "path": source.path, "signature": source.signature},
        "options": options.recipe(source),
        "classes": source.classes,
        **({"words": source.words} if source.words else {}),
        "splits": {split: describe_split(facts) for split, facts in built.items()},
        "warnings": source.warnings,
        "num_ignored": len(source.ignored),
        "ignored": ignored,
        "skipped": [entry._asdict() for entry in bad],
    }
