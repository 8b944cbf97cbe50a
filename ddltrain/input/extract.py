"""Gives images of a prepared data set back as files: JPEGs with the same coefficients, PNGs of what is stored as pixels."""

import os
import re
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from ddltrain.errors import DataError
from ddltrain.input import _image
from ddltrain.input.folders import FORMAT_OF_SUFFIX, printable
from ddltrain.input.publish import partial_folder, publish
from ddltrain.input.record import Record
from ddltrain.input.store import SPLITS, Dataset

Progress = Callable[[str, int, int], None]
"""Called after each image with its split, the images done and their total."""

_INDEX = re.compile(rf"({'|'.join(SPLITS)})/(\d+)")
_UNSAFE = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]')
_MAX_NAME_BYTES = 200  # file systems take 255


def extract_all(dataset: Dataset, folder: Path, on_progress: Progress) -> int:
    """Writes all images into the new folder `folder`, as SPLIT/CLASS/NAME; it appears whole or not at all.

    Returns the number of images. Raises `DataError` if the folder holds anything, or cannot be written.
    """
    folder = Path(os.path.realpath(folder))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder}: exists already; choose a folder that is new or empty")
    count = 0
    with partial_folder(folder, lambda partial: False) as partial:
        try:
            for split, store in dataset.splits.items():
                for index, record in enumerate(store):
                    _write(dataset, partial, split, index, record, may_rename=True)
                    on_progress(split, index + 1, len(store))
                count += len(store)
            publish(partial, folder, replace=False)
        except OSError as error:
            raise DataError(
                f"{folder}: cannot be written ({error.strerror}); nothing is left of it"
            ) from error
    return count


def extract_keys(dataset: Dataset, keys: Sequence[str], folder: Path) -> list[Path]:
    """Writes some images into `folder`, as SPLIT/CLASS/NAME; returns the files.

    A key is SPLIT/INDEX, such as train/0, or the name of a record. Raises `DataError` for a key that is none, before anything
    is written, and instead of overwriting a file.
    """
    found = _find(dataset, keys)
    try:
        return [_write(dataset, folder, split, index, dataset.splits[split][index]) for split, index in found]
    except FileExistsError as error:
        raise DataError(f"{error.filename}: exists already; choose another folder, or remove it") from error
    except OSError as error:
        raise DataError(f"{folder}: cannot be written ({error.strerror})") from error


def _find(dataset: Dataset, keys: Sequence[str]) -> list[tuple[str, int]]:
    """The split and the index of each key; names are looked for in all records, once."""
    found: dict[str, list[tuple[str, int]]] = {key: [] for key in keys}
    for key in keys:
        if (match := _INDEX.fullmatch(key)) and int(match[2]) < len(dataset.splits[match[1]]):
            found[key].append((match[1], int(match[2])))
    if names := {key for key, places in found.items() if not places}:
        for split, store in dataset.splits.items():
            for index, record in enumerate(store):
                if record.name in names:
                    found[record.name].append((split, index))
    if unknown := [key for key, places in found.items() if not places]:
        sizes = ", ".join(f"{split}/0 to {split}/{len(store) - 1}" for split, store in dataset.splits.items())
        raise DataError(
            f"{dataset.path}: no record {printable(unknown[0])}; keys are names of records, or {sizes}"
        )
    return sorted({place for places in found.values() for place in places})


def _write(
    dataset: Dataset, folder: Path, split: str, index: int, record: Record, may_rename: bool = False
) -> Path:
    """Writes one image; a list may name one file twice, then `may_rename` puts the index behind the second."""
    data, suffix = as_file(record, f"{split}/{index}")
    label = dataset.classes[record.label]
    name = _file_name(record.name, split, label, suffix)
    path = folder / split / _safe(label) / name
    if may_rename and path.exists():
        path = path.with_stem(f"{path.stem}-{index}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(data)
    return path


def as_file(record: Record, where: str) -> tuple[bytes, str]:
    """The bytes of an image file, and the suffix of its name."""
    try:
        kind, _, _, channels, _ = _image.info(record.image)
        if kind == "jpeg":
            return _image.unpack(record.image), ".jpg"
        pixels = _image.decode_rgb(record.image)
    except (ValueError, RuntimeError) as error:
        raise DataError(
            f"record {where} ({printable(record.name)}) is damaged ({error}); run ddltrain verify"
        ) from error
    buffer = BytesIO()
    Image.fromarray(pixels if channels == 3 else np.ascontiguousarray(pixels[:, :, 0])).save(buffer, "PNG")
    return buffer.getvalue(), ".png"


def _file_name(name: str, split: str, label: str, suffix: str) -> str:
    """The file name of a record: its own, but for folders in it beyond those of split and class, and a suffix that does not fit."""
    parts = [part for part in PurePosixPath(name).parts if part not in ("/", "..", ".")]
    for folder in (split, label):
        if len(parts) > 1 and parts[0] == folder:
            parts.pop(0)
    base = _safe("__".join(parts) or "image")
    stem, old = os.path.splitext(base)
    is_right = FORMAT_OF_SUFFIX.get(old.lower()) == FORMAT_OF_SUFFIX[suffix]
    return base if is_right else (base if old.lower() not in FORMAT_OF_SUFFIX else stem) + suffix


def _safe(name: str) -> str:
    """`name` as the name of one file or folder on any system."""
    shown = _UNSAFE.sub("_", name)
    shown = "_" + shown[1:] if shown.startswith(".") or not shown else shown
    while len(os.fsencode(shown)) > _MAX_NAME_BYTES:  # what tells names apart is mostly at their ends
        shown = shown[1:]
    return shown
