"""Reads which class the images of a flat val folder or archive of ILSVRC-2012 have, from any of the lists in use."""

import io
import os
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddltrain.errors import DataError

GROUND_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
_META = "meta.mat"
_DEVKITS = ("ILSVRC2012_devkit_t12.tar.gz", "ILSVRC2012_devkit_t12")
_LISTS = ("ILSVRC2012_val_labels.txt", "LOC_val_solution.csv")
_MAX_DEVKIT_FILE_BYTES = 64 << 20


@dataclass(frozen=True)
class ValLabels:
    """The class of each image by its file name, and the list that tells it."""

    file: Path
    of_file: dict[str, str]


def find_val_labels(folder: Path) -> Path | None:
    """The list of labels, or the devkit, in a folder; None if there is none."""
    return next((folder / name for name in (*_LISTS, *_DEVKITS) if (folder / name).exists()), None)


def read_val_labels(path: Path, classes: Sequence[str]) -> ValLabels:
    """Reads a list or a devkit.

    Lists are lines of `file WNID`, lines of `file index` (from 0, into the sorted WNIDs), or Kaggle's LOC_val_solution.csv.
    A devkit is its folder or its archive. Raises `DataError`, with the number of the line, for anything else.
    """
    if path.is_dir() or path.name.endswith((".tar.gz", ".tgz")):
        return ValLabels(path, _from_devkit(path))
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a list of labels ({error})") from error
    labels = {}
    for number, line in enumerate(lines, start=1):
        words = line.replace(",", " ").split()
        if not words or words[0] == "ImageId":
            continue
        if len(words) == 1:
            raise DataError(f"{path}:{number}: expected `file WNID`, found {line!r}")
        name = words[0].rsplit("/", 1)[-1]
        labels[name if "." in name else f"{name}.JPEG"] = _label(words[1], classes, f"{path}:{number}")
    return ValLabels(path, labels)


def _label(word: str, classes: Sequence[str], where: str) -> str:
    if not word.isdecimal():
        return word
    if int(word) >= len(classes):
        raise DataError(f"{where}: class {word}; train has {len(classes)} classes, counted from 0")
    return classes[int(word)]


def _from_devkit(path: Path) -> dict[str, str]:
    try:
        from scipy.io import loadmat
    except ImportError:
        raise DataError(
            f"{path}: reading the devkit needs SciPy (pip install scipy); or use --val-list FILE"
        ) from None
    try:
        truth, meta = _devkit_file(path, GROUND_TRUTH), _devkit_file(path, _META)
        synsets = loadmat(io.BytesIO(meta), squeeze_me=True)["synsets"]
        wnid_of = {
            int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in synsets if not int(row["num_children"])
        }
        numbers = [int(line) for line in truth.decode("ascii").split()]
        return {f"ILSVRC2012_val_{index:08d}.JPEG": wnid_of[n] for index, n in enumerate(numbers, start=1)}
    except (OSError, ValueError, KeyError, TypeError, EOFError, tarfile.TarError) as error:
        raise DataError(f"{path}: not the devkit of ILSVRC-2012 ({error!r}); get it again") from error


def _devkit_file(path: Path, name: str) -> bytes:
    if path.is_dir():
        return (path / "data" / name).read_bytes()
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            if (
                os.path.basename(member.name) == name
                and member.isreg()
                and member.size <= _MAX_DEVKIT_FILE_BYTES
            ):
                file = archive.extractfile(member)
                assert file is not None
                return file.read()
    raise KeyError(name)
