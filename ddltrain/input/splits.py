"""Makes of the images found in a source what is prepared: classes numbered, val checked or drawn."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ddltrain.errors import DataError
from ddltrain.input.files import read_file, read_member
from ddltrain.input.folders import FoundFile, Part, printable

_MAY_NUMBER = ("list", "webdataset")  # kinds in which classes that are all integers sort as numbers


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

    `signature` changes whenever an image is added, removed, touched or labelled anew; `options` are those that took effect;
    `ignored` lists (name, reason); `words` tell what the classes mean, where that is known.
    """

    kind: str
    path: str
    classes: list[str]
    splits: dict[str, list[Item]]
    signature: str
    options: SplitOptions
    ignored: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    words: list[str] | None = None


def assemble(
    kind: str,
    path: str,
    train: Part,
    val: Part | None,
    options: SplitOptions,
    order: Sequence[str] | None = None,
) -> Source:
    """Numbers the classes (from train alone), checks val against them, and draws val where there is none.

    `order` is that of the classes if the source has one; else they are sorted, in lists of integers as numbers. Raises `DataError`
    for classes without images and for images without a class.
    """
    for part in (train, val):
        if part is not None and not part.files:
            raise flat(part) if part.loose_images else DataError(f"{part.where}: holds no images")
    if train.empty_classes:
        raise DataError(
            f"{train.where}: no images in the class folders: {names(train.empty_classes)}; add some, or remove the folders"
        )
    is_drawn = val is None
    if val is None:
        train, val = _draw_val(train, options)
    by_number = kind in _MAY_NUMBER and all(label.isdecimal() for label in train.labels())
    labels = {_canonical(label, by_number) for label in train.labels()}
    classes = list(order) if order else sorted(labels, key=int) if by_number else sorted(labels)
    if absent := sorted(set(classes) - labels):
        raise DataError(f"{train.where}: no image of the classes {names(absent)}")
    number = {name: index for index, name in enumerate(classes)}
    warnings = _check_val(val, {_canonical(label, by_number) for label in val.labels()}, classes, is_drawn)
    if all(name.isdecimal() for name in classes) and sorted(classes, key=int) != classes:
        warnings.append(f"classes are sorted as text, not as numbers: {names(classes)}")
    splits = {
        split: [
            Item(file.name, number[_canonical(file.label, by_number)], _reader(file)) for file in part.files
        ]
        for split, part in (("train", train), ("val", val))
    }
    signature = signature_of([*train.files, *val.files])
    return Source(kind, path, classes, splits, signature, options, [*train.ignored, *val.ignored], warnings)


def _reader(file: FoundFile) -> Callable[[], bytes]:
    if file.offset < 0:
        return partial(read_file, file.path)
    return partial(read_member, file.path, file.offset, file.size_bytes)


def _canonical(label: str, by_number: bool) -> str:
    return str(int(label)) if by_number and label.isdecimal() else label


def _check_val(val: Part, val_labels: set[str], classes: list[str], is_drawn: bool) -> list[str]:
    """Raises `DataError` for classes that train does not know, or val lacks; returns what a user should hear of."""
    if unknown := sorted(val_labels - set(classes)):
        raise DataError(
            f"{val.where}: classes that train does not have: {names(unknown)}; "
            f"train has {len(classes)}: {names(classes)}"
        )
    warnings = []
    if missing := [name for name in classes if name not in val_labels]:
        what = f"no image of {len(missing)} of {len(classes)} classes: {names(missing)}"
        if not is_drawn:
            raise DataError(f"{val.where}: {what}; add some, or remove these classes from train")
        warnings.append(f"val has {what}: each has but one image")
    if empty := [name for name in val.empty_classes if name not in classes]:
        warnings.append(f"{val.where}: empty folders of classes that train does not have: {names(empty)}")
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


def names(of: Sequence[str], at_most: int = 10) -> str:
    """The first names, fit to print, and how many there are."""
    shown = ", ".join(printable(name) for name in of[:at_most])
    return f"{shown}, ... ({len(of)} in all)" if len(of) > at_most else shown


def signature_of(files: Iterable[FoundFile]) -> str:
    """A checksum of the names, classes, sizes and times of files."""
    digest = hashlib.sha256()
    for file in files:
        facts = f"{file.name}\0{file.label}\0{file.size_bytes}\0{file.mtime_ns}\0"
        digest.update(facts.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def flat(part: Part) -> DataError:
    """The error for a folder of images without classes."""
    return DataError(
        f"{part.where}: holds {part.loose_images} images but no class folders; move each image into a folder "
        "named after its class, or give text files of `path label` lines (--val-list FILE for val)"
    )
