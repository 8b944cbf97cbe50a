"""The pictures that the input benchmark decodes, in memory: packed for us, as files for the others."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ddltrain.errors import DataError
from ddltrain.input.extract import as_file
from ddltrain.input.files import ImageError
from ddltrain.input.folders import IMAGE_SUFFIXES
from ddltrain.input.packing import Shape, pack_image
from ddltrain.input.record import Record
from ddltrain.input.store import DATASET_FILE, open_dataset


@dataclass(frozen=True)
class Pictures:
    """The same pictures twice.

    Attributes:
        block: uint8 [bytes], packed images one behind the other.
        starts, sizes: int64 [n], where each lies.
        files: each as a JPEG or PNG file.
        shapes: width and height of each.
        left_out: names of those that could not be used, and why.
    """

    block: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray
    files: list[bytes]
    shapes: list[tuple[int, int]]
    left_out: list[str]

    def __len__(self) -> int:
        return len(self.files)

    def describe(self) -> str:
        width, height = np.mean(self.shapes, axis=0)
        mean_kb = sum(map(len, self.files)) / len(self) / 1e3
        more = len(self.block) / sum(map(len, self.files)) - 1
        return f"{len(self)} pictures, mean {width:.0f}x{height:.0f}, {mean_kb:.1f} kB a file; packed {more:+.1%}"


def read_pictures(data: Path, limit: int, shorter_side: int) -> Pictures:
    """Read and pack up to `limit` pictures, taken evenly from all there are.

    Args:
        data: a folder with pictures at any depth, or a prepared data set.
        shorter_side: larger pictures are shrunk first, until their shorter side has so many pixels; 0: not.

    Raises:
        DataError: there is none that can be used.
    """
    shape = Shape("shorter", shorter_side) if shorter_side else Shape()
    is_prepared = (data / DATASET_FILE).is_file()
    records, files, shapes, left_out = [], [], [], []
    for name, file in _of_data_set(data, limit) if is_prepared else _of_folder(data, limit):
        try:
            packed = pack_image(file, name, shape)
        except ImageError as error:
            left_out.append(f"{name}: {error}")
            continue
        is_kept = packed.stored == "coefficients kept"
        records.append(packed.image)
        files.append(file if is_kept else as_file(Record(name, 0, packed.image), name)[0])
        shapes.append((packed.width, packed.height))
    if not files:
        raise DataError(f"{data}: no pictures that can be used{f' ({left_out[0]})' if left_out else ''}")
    sizes = np.array([len(record) for record in records])
    block = np.frombuffer(b"".join(records), np.uint8)
    return Pictures(block, np.cumsum(sizes) - sizes, sizes, files, shapes, left_out)


def _of_folder(folder: Path, limit: int) -> Iterator[tuple[str, bytes]]:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; give a folder of pictures or a prepared data set")
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
    for number in _evenly(len(paths), limit):
        yield str(paths[number].relative_to(folder)), paths[number].read_bytes()


def _of_data_set(folder: Path, limit: int) -> Iterator[tuple[str, bytes]]:
    store = open_dataset(folder).splits["train"]
    for number in _evenly(len(store), limit):
        record = store[number]
        yield record.name, as_file(record, record.name)[0]


def _evenly(count: int, limit: int) -> list[int]:
    return [count * number // min(count, limit) for number in range(min(count, limit))]
