"""Finds labelled image files on disk, in class folders and in text lists, without reading the images."""

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ddltrain.errors import DataError

DIGITS = "digits"
KINDS = ("ilsvrc", "imagenet22k", "webdataset")  # what a source can be said to be
CIFAR10_FOLDER = "cifar-10-batches-py"
ACCEPTED = f"""\
SOURCE may be
  {DIGITS}       the built-in handwritten digits (./{DIGITS} means a folder of that name)
  a folder     with train/ and val/, in each one folder of images per class
  a folder     with one folder of images per class; --val-fraction F sets images aside for val
  a folder     with the lists train.txt and val.txt
  a text file  of `path label` lines; with --val-list FILE or --val-fraction F
  a folder     that is or holds {CIFAR10_FOLDER} (CIFAR-10, python version, unpacked)
  a folder     with ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar, or train/ and a flat val/, and the labels of val
  a folder     with one archive nXXXXXXXX.tar per class (ImageNet-22k; folders: --as imagenet22k); half is set aside for val
  a folder     of WebDataset shards: train-000000.tar ..., val-000000.tar ..., or train/*.tar and val/*.tar
Archives are read as they are; nothing is unpacked."""

FORMAT_OF_SUFFIX = {
    **dict.fromkeys((".jpg", ".jpeg", ".jpe", ".jfif"), "jpeg"),
    **dict.fromkeys((".tif", ".tiff"), "tiff"),
    **dict.fromkeys((".ppm", ".pgm", ".pbm", ".pnm"), "ppm"),
    **{f".{name}": name for name in ("png", "bmp", "gif", "webp")},
}
_UNREADABLE_SUFFIXES = (
    ".heic",
    ".heif",
    ".avif",
    ".jxl",
    ".jp2",
)  # pictures all the same: named as unusable, not ignored
IMAGE_SUFFIXES = (*FORMAT_OF_SUFFIX, *_UNREADABLE_SUFFIXES)
_NO_CLASS = frozenset({"__MACOSX"})  # left behind by archives
_TEXT_PROBE_BYTES = 4096


class FoundFile(NamedTuple):
    """An image file: its name relative to the source, its path, the name of its class, its size and time.

    Size and time are -1 where the file cannot be looked at; reading it will tell why. In an archive, `path` and time are
    the archive's, and `offset` tells where in it the image lies; else `offset` is -1.
    """

    name: str
    path: str
    label: str
    size_bytes: int
    mtime_ns: int
    offset: int = -1


@dataclass
class Part:
    """What one split of a source holds, before classes have numbers.

    `where` names it in messages; `ignored` lists (name, reason) of what is no labelled image; `loose_images`
    counts the images outside any class folder.
    """

    where: str
    files: list[FoundFile] = field(default_factory=list)
    empty_classes: list[str] = field(default_factory=list)
    ignored: list[tuple[str, str]] = field(default_factory=list)
    loose_images: int = 0

    def labels(self) -> set[str]:
        """The names of the classes that have files."""
        return {file.label for file in self.files}


def printable(name: str) -> str:
    """`name` on one line and safe to print: what a terminal cannot show is escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)


def list_folder(folder: str | Path) -> list[os.DirEntry[str]]:
    """The entries of a folder, sorted by name; raises `DataError` if it cannot be listed."""
    try:
        with os.scandir(os.fspath(folder)) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(f"cannot list the folder {folder}: {error.strerror}") from error


def has_image_suffix(name: str) -> bool:
    """Whether the file name is one of an image."""
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def is_hidden(name: str) -> bool:
    """Whether a file or folder of that name is passed over."""
    return name.startswith(".") or name in _NO_CLASS


def scan_class_folders(folder: Path, prefix: str) -> Part:
    """Finds the images below `folder`, one folder a class, nested folders included, links followed.

    `prefix` is put before their names ("train/"). Classes come sorted by name as text.
    """
    part = Part(where=str(folder))
    for entry in list_folder(folder):
        name = prefix + entry.name
        if is_hidden(entry.name):
            part.ignored.append((name, "hidden"))
        elif os.path.isdir(entry.path):
            num_before = len(part.files)
            _walk(entry.path, name, entry.name, part, frozenset())
            if len(part.files) == num_before:
                part.empty_classes.append(entry.name)
        elif has_image_suffix(entry.name):
            part.loose_images += 1
            part.ignored.append((name, "image outside the class folders"))
        else:
            part.ignored.append((name, "not the name of an image"))
    return part


def _walk(folder: str, prefix: str, label: str, part: Part, above: frozenset[tuple[int, int]]) -> None:
    """Adds the images of one folder of a class; `above` holds the folders on the way, to see link loops."""
    facts = os.stat(folder)
    identity = (facts.st_dev, facts.st_ino)
    if identity in above:
        part.ignored.append((prefix, "a link to a folder above it"))
        return
    for entry in list_folder(folder):
        name = f"{prefix}/{entry.name}"
        if is_hidden(entry.name):
            part.ignored.append((name, "hidden"))
            continue
        try:
            entry_facts = entry.stat()
        except OSError:  # such as a link to nowhere
            entry_facts = None
        if entry_facts is not None and stat.S_ISDIR(entry_facts.st_mode):
            _walk(entry.path, name, label, part, above | {identity})
        elif not has_image_suffix(entry.name):
            part.ignored.append((name, "not the name of an image"))
        elif entry_facts is None:
            part.files.append(FoundFile(name, entry.path, label, -1, -1))
        else:
            part.files.append(
                FoundFile(name, entry.path, label, entry_facts.st_size, entry_facts.st_mtime_ns)
            )


def is_text(path: Path) -> bool:
    """Whether a file looks like text; raises `DataError` if it cannot be read."""
    try:
        with path.open("rb") as file:
            return b"\0" not in file.read(_TEXT_PROBE_BYTES)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def read_list(path: Path) -> Part:
    """Reads lines of `path label`; paths may hold spaces and are relative to the folder of the list.

    Raises `DataError`, with the number of the line, for a line without a label.
    """
    if not is_text(path):
        raise DataError(f"{path}: not a text file of `path label` lines")
    part = Part(where=str(path))
    # Not splitlines(): names may hold the rarer line separators.
    lines = path.read_bytes().decode("utf-8-sig", "surrogateescape").split("\n")
    for number, line in enumerate(lines, start=1):
        words = line.strip().rsplit(maxsplit=1)
        if not words:
            continue
        if len(words) == 1:
            raise DataError(f"{path}:{number}: expected `path label`, found {words[0]!r}")
        name, label = words
        if re.fullmatch(r"-\d+", label):
            raise DataError(f"{path}:{number}: label {label}; labels are names, or integers from 0")
        file = os.path.join(path.parent, name)
        try:
            facts = os.stat(file)
            part.files.append(FoundFile(name, file, label, facts.st_size, facts.st_mtime_ns))
        except (OSError, ValueError):
            part.files.append(FoundFile(name, file, label, -1, -1))
    if not part.files:
        raise DataError(f"{path}: holds no `path label` line")
    return part
