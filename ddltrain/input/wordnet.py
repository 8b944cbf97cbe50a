"""Sets whose classes are WordNet synsets: ILSVRC-2012 and the whole of ImageNet, as archives or unpacked."""

import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path, PurePosixPath

from ddltrain.errors import DataError
from ddltrain.input.archives import TAR_SUFFIX, image_files, list_archive, list_nested, tars_in
from ddltrain.input.folders import (
    FoundFile,
    Part,
    has_image_suffix,
    is_hidden,
    list_folder,
    scan_class_folders,
)
from ddltrain.input.val_labels import ValLabels, find_val_labels, read_val_labels

WNID = re.compile(r"n\d{8}")
_TRAIN_TARS = ("ILSVRC2012_img_train.tar", "train.tar")
_VAL_TARS = ("ILSVRC2012_img_val.tar", "val.tar")
_WORDS_FILES = ("synset_words.txt", "LOC_synset_mapping.txt", "words.txt")


def looks_like_ilsvrc(path: Path) -> bool:
    """Whether the folder holds ILSVRC-2012: one of its archives, or the list of labels beside train and a flat val."""
    if any((path / names[0]).is_file() for names in (_TRAIN_TARS, _VAL_TARS)):
        return True
    tar = path / _TRAIN_TARS[1]
    if tar.is_file() and any(member.name.endswith(TAR_SUFFIX) for member in islice(list_archive(tar, []), 1)):
        return True
    has_val = (path / "val").is_dir() or (path / _VAL_TARS[1]).is_file()
    return (path / "train").is_dir() and has_val and find_val_labels(path) is not None


def looks_like_imagenet22k(path: Path) -> bool:
    """Whether the folder holds one archive for each synset."""
    return any(is_class_tar(tar) for tar in tars_in(path))


def is_class_tar(path: Path) -> bool:
    """Whether the file has the name of an archive of one synset."""
    return WNID.fullmatch(path.stem) is not None


def find_ilsvrc(path: Path, val_list: Path | None) -> tuple[Part, Part]:
    """The train and val images of ILSVRC-2012 in a folder; raises `DataError` for what is missing."""
    train = _train(path)
    val_tar = next((path / name for name in _VAL_TARS if (path / name).is_file()), None)
    folder = path / "val"
    if folder.is_dir() and any(entry.is_dir() for entry in list_folder(folder)):
        return train, scan_class_folders(folder, "val/")
    if folder.is_dir():
        files = [
            entry
            for entry in list_folder(folder)
            if has_image_suffix(entry.name) and not is_hidden(entry.name)
        ]
        facts = [entry.stat() for entry in files]
        found = [
            FoundFile(f"val/{entry.name}", entry.path, "", fact.st_size, fact.st_mtime_ns)
            for entry, fact in zip(files, facts, strict=True)
        ]
        val = Part(str(folder), found)
    elif val_tar is not None:
        val = Part(str(val_tar))
        val.files = image_files(val_tar, "", "val/", list_archive(val_tar, val.ignored), val.ignored)
    else:
        raise DataError(f"{path}: has neither {_VAL_TARS[0]} nor val/; add one of them")
    file = val_list or find_val_labels(path)
    if file is None:
        raise DataError(
            f"{val.where}: no labels for its images; put ILSVRC2012_val_labels.txt (lines of `file WNID`) or the "
            f"devkit (ILSVRC2012_devkit_t12.tar.gz) into {path}, or give --val-list FILE"
        )
    return train, _labelled(val, read_val_labels(file, sorted(train.labels())))


def _train(path: Path) -> Part:
    tar = next((path / name for name in _TRAIN_TARS if (path / name).is_file()), None)
    if (path / "train").is_dir():
        tars = tars_in(path / "train")
        return (
            _class_tars(path / "train", tars, "train/")
            if tars
            else scan_class_folders(path / "train", "train/")
        )
    if tar is None:
        raise DataError(f"{path}: has neither {_TRAIN_TARS[0]} nor train/; add one of them")
    part = Part(where=str(tar))
    for inner, members in sorted(list_nested(tar, part.ignored)):
        label = PurePosixPath(inner).stem
        _add_class(part, label, image_files(tar, label, f"train/{label}/", members, part.ignored))
    return part


def find_imagenet22k(path: Path) -> Part:
    """All images of ImageNet in a folder of one archive, or else one folder, for each synset."""
    tars = tars_in(path)
    return _class_tars(path, tars, "") if tars else scan_class_folders(path, "")


def _class_tars(folder: Path, tars: Iterable[Path], prefix: str) -> Part:
    part = Part(where=str(folder))
    for tar in tars:
        members = list_archive(tar, part.ignored)
        _add_class(part, tar.stem, image_files(tar, tar.stem, f"{prefix}{tar.stem}/", members, part.ignored))
    return part


def _add_class(part: Part, label: str, files: list[FoundFile]) -> None:
    part.files += files
    if not files:
        part.empty_classes.append(label)


def _labelled(val: Part, labels: ValLabels) -> Part:
    """Gives the images of a flat val their labels; raises `DataError` for those that have none."""
    names = {file.name.rsplit("/", 1)[-1]: file for file in val.files}
    if unknown := sorted(names.keys() - labels.of_file.keys()):
        shown = ", ".join(unknown[:10])
        raise DataError(f"{labels.file}: no label for {len(unknown)} images of {val.where}: {shown}")
    missing = sorted(labels.of_file.keys() - names.keys())
    val.ignored += [(f"val/{name}", f"labelled in {labels.file.name}, but not there") for name in missing]
    val.files = [file._replace(label=labels.of_file[name]) for name, file in names.items()]
    return val


def read_words(folder: Path, classes: Iterable[str]) -> list[str] | None:
    """What the classes mean, in their order, from a list of WNIDs and words in the folder of the source, if there is one."""
    file = next((folder / name for name in _WORDS_FILES if (folder / name).is_file()), None)
    if file is None:
        return None
    lines = (line.split(maxsplit=1) for line in file.read_text("utf-8", "replace").splitlines())
    words = {pair[0]: pair[1].strip() for pair in lines if len(pair) == 2}
    found = [words.get(name, "") for name in classes]
    return found if any(found) else None
