from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

# bytes, memoryview, uint8 array
Buffer = Any

class CorruptRecord(ValueError): ...  # noqa: N818
class Unsupported(ValueError): ...  # noqa: N818

class Isa(Enum):
    portable = 0
    avx2 = 1

class CropKind(Enum):
    random_resized = 0
    pad = 1
    center = 2

class Precision(Enum):
    fast = 0
    exact = 1

class OutputType(Enum):
    uint8 = 0
    float32 = 1
    bfloat16 = 2

class Sampling:
    def __init__(
        self,
        kind: CropKind,
        size: int,
        resize: int,
        scale: Sequence[float],
        ratio: Sequence[float],
        padding: int,
        flip: bool,
        precision: Precision,
        type: OutputType,
        channels_last: bool,
        offset: Sequence[float],
        factor: Sequence[float],
    ) -> None: ...

class Crop:
    @property
    def left(self) -> float: ...
    @property
    def top(self) -> float: ...
    @property
    def right(self) -> float: ...
    @property
    def bottom(self) -> float: ...
    @property
    def shift_x(self) -> int: ...
    @property
    def shift_y(self) -> int: ...
    @property
    def flip(self) -> bool: ...

class Batch: ...

class BatchDecoder:
    def __init__(self, num_threads: int) -> None: ...
    def submit(
        self,
        block: int,
        block_bytes: int,
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        records: NDArray[np.int64],
        sampling: Sampling,
        seed: int,
        epoch: int,
        images: int,
    ) -> Batch: ...
    def is_done(self, batch: Batch) -> bool: ...
    def wait(self, batch: Batch) -> tuple[int, str]: ...
    def close(self) -> None: ...

def pack_jpeg(data: Buffer) -> bytes: ...
def pack_pixels(pixels: NDArray[np.uint8]) -> bytes: ...
def unpack(record: Buffer) -> bytes: ...
def info(record: Buffer) -> tuple[str, int, int, int, str]: ...
def decode_rgb(record: Buffer) -> NDArray[np.uint8]: ...
def decode_planes(
    record: Buffer, left: int, top: int, width: int, height: int
) -> list[tuple[NDArray[np.uint8], int, int]]: ...
def draw_crop(sampling: Sampling, width: int, height: int, seed: int, epoch: int, record: int) -> Crop: ...
def isa() -> Isa: ...
def set_isa(wanted: Isa) -> None: ...
