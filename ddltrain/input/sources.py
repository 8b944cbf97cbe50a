"""What a user may prepare a data set from, and how each kind becomes labelled items for train and val."""

import difflib
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ddltrain.errors import DataError
from ddltrain.input.arrays import encode_png, load_cifar10, write_digits
from ddltrain.input.folders import (
    ACCEPTED,
    CIFAR10_FOLDER,
    DIGITS,
    FoundFile,
    Part,
    is_hidden,
    is_text,
    list_folder,
    printable,
    read_list,
    scan_class_folders,
)
from ddltrain.input.images import read_image_file
from ddltrain.input.store import DATASET_FILE

_VAL_NAMES = ("val", "validation", "valid")
_TEST_NAMES = ("test",)  # taken as val where there is none


@dataclass(frozen=True)
class SplitOptions:
    """Where val: if the source has none, a share of each class (0 to 1), drawn by `seed`, or a list."""

    val_fraction: float | None = None
    val_list: Path | None = None
    seed: int = 0

    def as_dict(self) -> dict[str, Any]:
        """What of it decides on the content of the data set."""
        val_list = None if self.val_list is None else str(self.val_list.resolve())
        seed = None if self.val_fraction is None else self.seed
        return {"val_fraction": self.val_fraction, "val_list": val_list, "seed": seed}


@dataclass(frozen=True, slots=True)
class Item:
    """One image to prepare: its name relative to the source, its label, and what reads its encoded bytes."""

    name: str
    label: int
    read: Callable[[], bytes]


@dataclass(frozen=True)
class Source:
    """All that is known of a source without reading images.

    `signature` changes whenever an image is added, removed, touched or labelled anew; `ignored` lists
    (name, reason).
    """

    kind: str
    path: str
    classes: list[str]
    splits: dict[str, list[Item]]
    signature: str
    ignored: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def find_source(source: str, options: SplitOptions) -> Source:
    """Finds out what `source` is and lists its images.

    Raises `DataError` for anything that is no source, with the nearest guess; `OSError` for what is unreadable.
    """
    if source == DIGITS:
        _refuse_split_options(source, options)
        return _digits(options)
    path = Path(os.path.abspath(source))
    if not path.exists():
        raise DataError(f"{source}: no such file or folder{_nearest(path)}\n{ACCEPTED}")
    if path.is_dir():
        return _find_in_folder(path, options)
    if not is_text(path):
        hint = "; unpack it first" if re.search(r"\.(zip|tar|tgz|gz|bz2|xz)$", path.name, re.I) else ""
        raise DataError(f"{source}: neither a folder nor a text file{hint}\n{ACCEPTED}")
    return _assemble("list", str(path), read_list(path), None, options)


def _nearest(path: Path) -> str:
    names = [entry.name for entry in list_folder(path.parent)] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, [*names, DIGITS], n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _find_in_folder(path: Path, options: SplitOptions) -> Source:
    if (path / DATASET_FILE).exists():
        raise DataError(f"{path}: a prepared data set already; train on it: data={path}")
    for root in (path.parent, path):
        if (root / CIFAR10_FOLDER).is_dir() and (root == path or path.name == CIFAR10_FOLDER):
            _refuse_split_options(str(path), options)
            return _cifar10(root)
    folders = set(_folder_names(path))
    train, val = _split_folders(path, folders)
    lists = path / "train.txt", path / "val.txt"
    has_classes = train and val and _folder_names(path / train) and _folder_names(path / val)
    if lists[0].is_file() and not has_classes:
        val_part = read_list(lists[1]) if lists[1].is_file() and not options.val_list else None
        if val_part and options.val_fraction is not None:
            raise DataError(f"{path}: has a val.txt, so --val-fraction does not apply")
        return _assemble("list", str(path), read_list(lists[0]), val_part, options)
    if train is not None:
        train_part = scan_class_folders(path / train, f"{train}/")
        if val is not None and options.val_fraction is not None:
            raise DataError(f"{path}: has {val}/, so --val-fraction does not apply")
        val_part = scan_class_folders(path / val, f"{val}/") if val and options.val_list is None else None
        beside = sorted(folders - {train, val})
        train_part.ignored.extend((f"{name}/", "folder beside train and val") for name in beside)
        return _assemble("image folder", str(path), train_part, val_part, options)
    if val is not None and not folders - {val}:
        raise DataError(f"{path}: has {val}/ but no train/\n{ACCEPTED}")
    return _find_classes(path, options, folders)


def _folder_names(folder: Path) -> list[str]:
    names = [entry.name for entry in list_folder(folder) if not is_hidden(entry.name)]
    return [name for name in names if (folder / name).is_dir()]


def _split_folders(path: Path, folders: set[str]) -> tuple[str | None, str | None]:
    """The names of the folders for train and val, in whatever case."""
    trains = [name for name in sorted(folders) if name.lower() == "train"]
    vals = [name for name in sorted(folders) if name.lower() in _VAL_NAMES]
    vals = vals or [name for name in sorted(folders) if name.lower() in _TEST_NAMES]
    train, val = next(iter(trains), None), next(iter(vals), None)
    if train and not val and len(folders) > 1 and not _folder_names(path / train):
        return None, None  # a class of that name, as of vehicles
    for names in (trains, vals):
        if len(names) > 1 and train:
            raise DataError(f"{path}: holds {' and '.join(names)}; keep one of them")
    return train, val


def _find_classes(path: Path, options: SplitOptions, folders: set[str]) -> Source:
    """A folder of class folders without train/ and val/."""
    part = scan_class_folders(path, "")
    if part.files and (options.val_fraction is not None or options.val_list is not None):
        return _assemble("image folder", str(path), part, None, options)
    inside = [name for name in sorted(folders) if {"train", CIFAR10_FOLDER} & set(_folder_names(path / name))]
    hint = f"; did you mean {path / inside[0]}?" if inside else ""
    if not hint and any(entry.name.startswith("cifar-10-python.tar") for entry in list_folder(path)):
        hint = "; unpack cifar-10-python.tar.gz there first (tar xzf)"
    if not hint and part.files:
        raise DataError(
            f"{path}: has {len(part.labels())} class folders but no train/ and val/; "
            "add --val-fraction 0.1 to set a tenth of each class aside for val"
        )
    if not hint and part.loose_images:
        raise _flat(part)
    raise DataError(f"{path}: not a source of labelled images{hint}\n{ACCEPTED}")


def _flat(part: Part) -> DataError:
    return DataError(
        f"{part.where}: holds {part.loose_images} images but no class folders; move each image into a folder "
        "named after its class, or give text files of `path label` lines (--val-list FILE for val)"
    )


def _refuse_split_options(source: str, options: SplitOptions) -> None:
    if options.val_fraction is not None or options.val_list is not None:
        raise DataError(f"{source}: brings its own val, so --val-fraction and --val-list do not apply")


def _assemble(kind: str, path: str, train: Part, val: Part | None, options: SplitOptions) -> Source:
    """Numbers the classes (from train alone), checks val against them, and splits where asked."""
    if options.val_list is not None:
        val = read_list(options.val_list)
    for part in (train, val):
        if part is not None and not part.files:
            raise _flat(part) if part.loose_images else DataError(f"{part.where}: holds no images")
    if train.empty_classes:
        raise DataError(
            f"{train.where}: no images in the class folders: {_names(train.empty_classes)}; add some, or remove the folders"
        )
    if val is None:
        train, val = _draw_val(train, options)
    by_number = kind == "list" and all(label.isdecimal() for label in train.labels())
    labels = {_canonical(label, by_number) for label in train.labels()}
    classes = sorted(labels, key=int) if by_number else sorted(labels)
    number = {name: index for index, name in enumerate(classes)}
    warnings = _check_val(val, {_canonical(label, by_number) for label in val.labels()}, classes)
    if all(name.isdecimal() for name in classes) and sorted(classes, key=int) != classes:
        warnings.append(f"classes are sorted as text, not as numbers: {_names(classes)}")
    splits = {
        split: [
            Item(file.name, number[_canonical(file.label, by_number)], partial(read_image_file, file.path))
            for file in part.files
        ]
        for split, part in (("train", train), ("val", val))
    }
    signature = _signature([*train.files, *val.files])
    return Source(kind, path, classes, splits, signature, [*train.ignored, *val.ignored], warnings)


def _canonical(label: str, by_number: bool) -> str:
    return str(int(label)) if by_number and label.isdecimal() else label


def _check_val(val: Part, val_labels: set[str], classes: list[str]) -> list[str]:
    """Raises `DataError` for classes that train does not know; returns what a user should hear of."""
    if unknown := sorted(val_labels - set(classes)):
        raise DataError(
            f"{val.where}: classes that train does not have: {_names(unknown)}; "
            f"train has {len(classes)}: {_names(classes)}"
        )
    warnings = []
    if missing := [name for name in classes if name not in val_labels]:
        warnings.append(f"val has no image of {len(missing)} of {len(classes)} classes: {_names(missing)}")
    if empty := [name for name in val.empty_classes if name not in classes]:
        warnings.append(f"{val.where}: empty folders of classes that train does not have: {_names(empty)}")
    return warnings


def _draw_val(train: Part, options: SplitOptions) -> tuple[Part, Part]:
    """Moves a share of each class to val, at least one image and never all.

    The choice hangs on the seed and each image's name alone, so it is the same everywhere.
    """
    if options.val_fraction is None:
        raise DataError(
            f"{train.where}: there is no val; add --val-fraction 0.1 to set a tenth of each class aside for "
            "val, or --val-list FILE"
        )
    of_class: dict[str, list[tuple[bytes, int]]] = {}
    for index, file in enumerate(train.files):
        key = f"{options.seed}:{file.name}".encode("utf-8", "surrogateescape")
        of_class.setdefault(file.label, []).append((hashlib.sha256(key).digest(), index))
    chosen: set[int] = set()
    for ranked in of_class.values():
        wanted = max(1, round(len(ranked) * options.val_fraction))
        chosen.update(index for _, index in sorted(ranked)[: min(wanted, len(ranked) - 1)])
    rest = Part(train.where, ignored=train.ignored)
    val = Part(train.where)
    for index, file in enumerate(train.files):
        (val if index in chosen else rest).files.append(file)
    if not val.files:
        raise DataError(f"{train.where}: one image in each class; nothing can be set aside for val")
    return rest, val


def _names(names: Sequence[str], at_most: int = 10) -> str:
    shown = ", ".join(printable(name) for name in names[:at_most])
    return f"{shown}, ... ({len(names)} in all)" if len(names) > at_most else shown


def _signature(files: Iterable[FoundFile]) -> str:
    digest = hashlib.sha256()
    for file in files:
        facts = f"{file.name}\0{file.label}\0{file.size_bytes}\0{file.mtime_ns}\0"
        digest.update(facts.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _digits(options: SplitOptions) -> Source:
    """The digits, written out and found again as any folder of images; small enough to be held in memory."""
    with TemporaryDirectory(prefix="ddltrain-") as name:
        folder = Path(name)
        write_digits(folder)
        train, val = (scan_class_folders(folder / split, f"{split}/") for split in ("train", "val"))
        found = _assemble("digits", DIGITS, train, val, options)
        for items in found.splits.values():
            items[:] = [replace(item, read=partial(bytes, item.read())) for item in items]
    return found


def _cifar10(root: Path) -> Source:
    classes, arrays = load_cifar10(root)
    splits = {
        split: [
            Item(f"{split}/{index:05d}", label, partial(encode_png, image))
            for index, (image, label) in enumerate(zip(images, labels, strict=True))
        ]
        for split, (images, labels) in arrays.items()
    }
    folder = root / CIFAR10_FOLDER
    facts = [(file.name, file.stat()) for file in sorted(folder.glob("*batch*"))]
    signature = _signature(FoundFile(name, "", "", fact.st_size, fact.st_mtime_ns) for name, fact in facts)
    return Source("cifar10", str(folder), classes, splits, signature)
