"""What a user may prepare a data set from: finds out which kind of source it is, and what is in it."""

import difflib
import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from ddltrain.errors import DataError
from ddltrain.input.arrays import encode_png, load_cifar10, write_digits
from ddltrain.input.folders import (
    ACCEPTED,
    CIFAR10_FOLDER,
    DIGITS,
    FoundFile,
    is_text,
    list_folder,
    read_list,
    scan_class_folders,
)
from ddltrain.input.image_folder import find_image_folder
from ddltrain.input.splits import Item, Source, SplitOptions, assemble, signature_of
from ddltrain.input.store import DATASET_FILE
from ddltrain.input.webdataset import find_webdataset, looks_like_webdataset, read_class_names
from ddltrain.input.wordnet import (
    find_ilsvrc,
    find_imagenet22k,
    looks_like_ilsvrc,
    looks_like_imagenet22k,
    read_words,
)

IMAGENET22K_VAL_FRACTION = 0.5  # half of the images of each class, as is the custom for this set


def find_source(source: str, options: SplitOptions, kind: str | None = None) -> Source:
    """Finds out what `source` is, unless `kind` tells it ("ilsvrc", "imagenet22k", "webdataset"), and lists its images.

    Raises `DataError` for anything that is no source, with the nearest guess; `OSError` for what is unreadable.
    """
    if source == DIGITS and kind is None:
        _refuse_split_options(source, options)
        return _digits(options)
    path = Path(os.path.abspath(source))
    if not path.exists():
        raise DataError(f"{source}: no such file or folder{_nearest(path)}\n{ACCEPTED}")
    if path.is_dir():
        return _find_in_folder(path, options, kind)
    if not is_text(path):
        hint = "; unpack it first" if re.search(r"\.(zip|tgz|gz|bz2|xz)$", path.name, re.I) else ""
        hint = f"; give the folder it lies in, {path.parent}" if path.name.endswith(".tar") else hint
        raise DataError(f"{source}: neither a folder nor a text file{hint}\n{ACCEPTED}")
    val = read_list(options.val_list) if options.val_list else None
    return assemble("list", str(path), read_list(path), val, options)


def _nearest(path: Path) -> str:
    names = [entry.name for entry in list_folder(path.parent)] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, [*names, DIGITS], n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _find_in_folder(path: Path, options: SplitOptions, kind: str | None) -> Source:
    if (path / DATASET_FILE).exists():
        raise DataError(f"{path}: a prepared data set already; train on it: data={path}")
    for root in (path.parent, path):
        if (root / CIFAR10_FOLDER).is_dir() and (root == path or path.name == CIFAR10_FOLDER):
            _refuse_split_options(str(path), options)
            return _cifar10(root, options)
    for name, (looks_like, find) in _FOUND_BY_CONTENT.items():
        if kind == name or (kind is None and looks_like(path)):
            found = find(path, options)
            break
    else:
        found = find_image_folder(path, options)
    return replace(found, words=read_words(path, found.classes))


def _ilsvrc(path: Path, options: SplitOptions) -> Source:
    if options.val_fraction is not None:
        raise DataError(f"{path}: ILSVRC-2012 has a val of its own, so --val-fraction does not apply")
    train, val = find_ilsvrc(path, options.val_list)
    return assemble("ilsvrc", str(path), train, val, options)


def _imagenet22k(path: Path, options: SplitOptions) -> Source:
    if options.val_list is not None:
        raise DataError(f"{path}: val is drawn from ImageNet-22k, so --val-list does not apply")
    options = replace(options, val_fraction=options.val_fraction or IMAGENET22K_VAL_FRACTION)
    return assemble("imagenet22k", str(path), find_imagenet22k(path), None, options)


def _webdataset(path: Path, options: SplitOptions) -> Source:
    if options.val_list is not None:
        raise DataError(f"{path}: WebDataset shards hold their labels, so --val-list does not apply")
    order = read_class_names(path)
    train, val = find_webdataset(path, order)
    if val is not None and options.val_fraction is not None:
        raise DataError(f"{path}: has a val, so --val-fraction does not apply")
    return assemble("webdataset", str(path), train, val, options, order)


_FOUND_BY_CONTENT: dict[str, tuple[Callable[[Path], bool], Callable[[Path, SplitOptions], Source]]] = {
    "ilsvrc": (looks_like_ilsvrc, _ilsvrc),
    "imagenet22k": (looks_like_imagenet22k, _imagenet22k),
    "webdataset": (looks_like_webdataset, _webdataset),
}


def _refuse_split_options(source: str, options: SplitOptions) -> None:
    if options.val_fraction is not None or options.val_list is not None:
        raise DataError(f"{source}: brings its own val, so --val-fraction and --val-list do not apply")


def _digits(options: SplitOptions) -> Source:
    """The digits, written out and found again as any folder of images; small enough to be held in memory."""
    with TemporaryDirectory(prefix="ddltrain-") as name:
        folder = Path(name)
        write_digits(folder)
        train, val = (scan_class_folders(folder / split, f"{split}/") for split in ("train", "val"))
        found = assemble("digits", DIGITS, train, val, options)
        for items in found.splits.values():
            items[:] = [replace(item, read=partial(bytes, item.read())) for item in items]
    return found


def _cifar10(root: Path, options: SplitOptions) -> Source:
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
    signature = signature_of(FoundFile(name, "", "", fact.st_size, fact.st_mtime_ns) for name, fact in facts)
    return Source("cifar10", str(folder), classes, splits, signature, options)
