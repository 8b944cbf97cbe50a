"""Finds images in folders: train and val with class folders, class folders alone, or lists of paths and labels."""

from pathlib import Path

from ddltrain.errors import DataError
from ddltrain.input.folders import (
    ACCEPTED,
    CIFAR10_FOLDER,
    Part,
    is_hidden,
    list_folder,
    printable,
    read_list,
    scan_class_folders,
)
from ddltrain.input.splits import Source, SplitOptions, assemble, flat

_VAL_NAMES = ("val", "validation", "valid")
_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".zip")
_TEST_NAMES = ("test",)  # taken as val where there is none


def find_image_folder(path: Path, options: SplitOptions) -> Source:
    """What is in a folder of images; raises `DataError`, with a guess at what was meant, if it is none."""
    folders = set(folder_names(path))
    train, val = _split_folders(path, folders)
    lists = path / "train.txt", path / "val.txt"
    has_classes = train and val and folder_names(path / train) and folder_names(path / val)
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


def _assemble(kind: str, path: str, train: Part, val: Part | None, options: SplitOptions) -> Source:
    if options.val_list is not None:
        val = read_list(options.val_list)
    return assemble(kind, path, train, val, options)


def folder_names(folder: Path) -> list[str]:
    """The names of the folders in a folder, but for the hidden ones."""
    names = [entry.name for entry in list_folder(folder) if not is_hidden(entry.name)]
    return [name for name in names if (folder / name).is_dir()]


def _split_folders(path: Path, folders: set[str]) -> tuple[str | None, str | None]:
    """The names of the folders for train and val, in whatever case."""
    trains = [name for name in sorted(folders) if name.lower() == "train"]
    vals = [name for name in sorted(folders) if name.lower() in _VAL_NAMES]
    vals = vals or [name for name in sorted(folders) if name.lower() in _TEST_NAMES]
    train, val = next(iter(trains), None), next(iter(vals), None)
    if train and not val and len(folders) > 1 and not folder_names(path / train):
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
    inside = [name for name in sorted(folders) if {"train", CIFAR10_FOLDER} & set(folder_names(path / name))]
    hint = f"; did you mean {path / inside[0]}?" if inside else ""
    if not hint and any(entry.name.startswith("cifar-10-python.tar") for entry in list_folder(path)):
        hint = "; unpack cifar-10-python.tar.gz there first (tar xzf)"
    packed = [entry.name for entry in list_folder(path) if entry.name.lower().endswith(_COMPRESSED)]
    if not hint and not part.files and packed:
        hint = f"; {printable(packed[0])} is compressed, unpack it first (shards: to plain .tar)"
    if not hint and part.files:
        raise DataError(
            f"{path}: has {len(part.labels())} class folders but no train/ and val/; "
            "add --val-fraction 0.1 to set a tenth of each class aside for val"
        )
    if not hint and part.loose_images:
        raise flat(part)
    raise DataError(f"{path}: not a source of labelled images{hint}\n{ACCEPTED}")
