"""Data sets that come as arrays: CIFAR-10 in torchvision's files, and scikit-learn's handwritten digits."""

import os
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ddltrain.errors import DataError
from ddltrain.input.folders import CIFAR10_FOLDER

_DIGITS_VAL_EVERY = 5
_DIGITS_PEAK = 16  # the digits count the ink of 4x4 cells


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """The PNG of uint8 pixels, [height, width] gray or [height, width, 3] RGB."""
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def load_cifar10(root: Path) -> tuple[list[str], dict[str, tuple[NDArray[np.uint8], list[int]]]]:
    """Reads `root/cifar-10-batches-py`: class names, and for train and val pixels [n, 32, 32, 3] and labels.

    The files' MD5 are checked before they are unpickled. Raises `DataError` that names a missing or damaged
    file.
    """
    from torchvision.datasets import CIFAR10
    from torchvision.datasets.utils import check_integrity

    files = [*CIFAR10.train_list, *CIFAR10.test_list, (CIFAR10.meta["filename"], CIFAR10.meta["md5"])]
    for name, md5 in files:
        file = root / CIFAR10_FOLDER / name
        if not check_integrity(os.fspath(file), md5):
            state = "damaged (its MD5 differs)" if file.is_file() else "missing"
            raise DataError(f"{file}: {state}; unpack the python version of CIFAR-10 again")
    train, test = CIFAR10(root, train=True, download=False), CIFAR10(root, train=False, download=False)
    return list(train.classes), {"train": (train.data, train.targets), "val": (test.data, test.targets)}


def write_digits(folder: Path) -> None:
    """Writes the 1,797 digits as PNG files, 8x8 gray, `train/D/*.png` and `val/D/*.png`.

    Of each class every 5th is for val. All files get the same time, so that two writings count as the same
    source.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise DataError("the digits come from scikit-learn: pip install scikit-learn") from None
    digits = load_digits()
    seen = [0] * 10
    for index, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        seen[label] += 1
        split = "val" if seen[label] % _DIGITS_VAL_EVERY == 0 else "train"
        file = folder / split / str(label) / f"{index:04d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encode_png(np.rint(image * (255 / _DIGITS_PEAK)).astype(np.uint8)))
        os.utime(file, (0, 0))
