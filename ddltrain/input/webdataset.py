"""WebDataset shards: tar archives in which `key.jpg` and `key.cls` are one labelled image."""

import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from ddltrain.errors import DataError
from ddltrain.input.archives import Member, list_archive, tars_in
from ddltrain.input.folders import IMAGE_SUFFIXES, FoundFile, Part

CLASSES_FILE = "classes.txt"
_LABEL_SUFFIX = ".cls"
_MAX_LABEL_BYTES = 1024
_TRAIN = re.compile(r"(^|[^a-z])train", re.I)
_VAL = re.compile(r"(^|[^a-z])(val|valid|validation|test)([^a-z]|$)", re.I)
_PROBED = 64  # files looked at to tell what an archive is


def looks_like_webdataset(path: Path) -> bool:
    """Whether the folder, or train/ in it, holds archives in which images have labels beside them."""
    tars = tars_in(path / "train" if (path / "train").is_dir() else path)
    if not tars:
        return False
    members = list_archive(tars[0], [])
    return any(
        member.name.endswith(_LABEL_SUFFIX) for member, _ in zip(members, range(_PROBED), strict=False)
    )


def _tars_of(path: Path, name: str) -> list[Path]:
    return tars_in(path / name) if (path / name).is_dir() else []


def find_webdataset(path: Path, names: list[str] | None) -> tuple[Part, Part | None]:
    """The train and val images; val is None if there is no archive of it. Integers among the labels stand for `names`.

    Raises `DataError` for labels that are missing.
    """
    train, val = _tars_of(path, "train"), _tars_of(path, "val")
    if not train:
        tars = tars_in(path)
        val = [tar for tar in tars if _VAL.search(tar.stem)]
        train = [tar for tar in tars if tar not in val]
        if any(_TRAIN.search(tar.stem) for tar in train) and (
            odd := [t for t in train if not _TRAIN.search(t.stem)]
        ):
            raise DataError(f"{odd[0]}: an archive of neither train nor val by its name; rename or remove it")
    if not train:
        raise DataError(
            f"{path}: no archives of train; name them train-000000.tar and so on, or put them into train/"
        )
    return _read(path, train, names), _read(path, val, names) if val else None


def read_class_names(path: Path) -> list[str] | None:
    """The names of the classes in their order, a line each of `classes.txt`, if the source brings it."""
    file = path / CLASSES_FILE
    if not file.is_file():
        return None
    names = [line.strip() for line in file.read_text("utf-8").splitlines() if line.strip()]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"{file}: names twice: {', '.join(twice[:10])}")
    return names


def _read(root: Path, tars: Iterable[Path], names: list[str] | None) -> Part:
    part = Part(where=str(root))
    for tar in tars:
        _add_tar(part, root, tar, names)
    return part


def _add_tar(part: Part, root: Path, tar: Path, names: list[str] | None) -> None:
    images: dict[str, Member] = {}
    labels: dict[str, Member] = {}
    others: Counter[str] = Counter()
    for member in list_archive(tar, part.ignored):
        folder, _, base = member.name.rpartition("/")
        stem, _, suffix = base.partition(".")
        key, suffix = f"{folder}/{stem}", f".{suffix.lower()}"
        kept = images if suffix in IMAGE_SUFFIXES else labels if suffix == _LABEL_SUFFIX else None
        if kept is None:
            others[suffix] += 1
        elif key in kept:
            raise DataError(f"{tar}: {member.name}: the second file of its kind for one key")
        else:
            kept[key] = member
    for only, what in ((images.keys() - labels.keys(), "label"), (labels.keys() - images.keys(), "image")):
        if only:
            shown = ", ".join(key.removeprefix("/") for key in sorted(only)[:10])
            raise DataError(f"{tar}: no {what} for {len(only)} of its keys: {shown}")
    shown_tar = tar.relative_to(root).as_posix()
    part.ignored += [
        (f"{shown_tar}/*{suffix}", f"{count} files that are no image and no label")
        for suffix, count in others.items()
    ]
    facts = tar.stat()
    with tar.open("rb") as stream:
        for key, member in images.items():
            label = _label(
                os.pread(stream.fileno(), min(labels[key].size_bytes, _MAX_LABEL_BYTES), labels[key].offset),
                names,
                f"{tar}: {labels[key].name}",
            )
            name = f"{shown_tar.removesuffix('.tar')}/{PurePosixPath(member.name)}"
            part.files.append(
                FoundFile(name, str(tar), label, member.size_bytes, facts.st_mtime_ns, member.offset)
            )


def _label(data: bytes, names: list[str] | None, where: str) -> str:
    try:
        label = data.decode("utf-8").strip()
    except UnicodeDecodeError:
        label = ""
    if not label or "\n" in label:
        raise DataError(f"{where}: expected one class, found {data[:40]!r}")
    if names is not None and label.isdecimal():
        if int(label) >= len(names):
            raise DataError(f"{where}: class {label}, but {CLASSES_FILE} names {len(names)} classes")
        return names[int(label)]
    return label
