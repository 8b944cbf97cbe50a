"""Small folders of pictures, and data sets made of them."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ddltrain.input.build import PrepareOptions
from ddltrain.input.prepare import Outcome, prepare
from ddltrain.input.splits import SplitOptions


def make_source(root: Path, per_class: int = 5, image_format: str = "png") -> Path:
    generator = np.random.default_rng(0)
    for split in ("train", "val"):
        for name in ("a", "b"):
            (root / split / name).mkdir(parents=True)
            for index in range(per_class):
                pixels = generator.integers(0, 256, (8 + index, 9, 3), np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{index}.{image_format}")
    return root


def make(source: Path | str, out: Path, **options: Any) -> Outcome:
    split = SplitOptions(options.pop("val_fraction", None))
    on_progress = options.pop("on_progress", lambda split, done, total: None)
    return prepare(str(source), out, PrepareOptions(split, **options), on_progress)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".lmdb"}
