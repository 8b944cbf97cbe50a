"""Batches of images from packed records, decoded by threads of our own in C++.

What an image shows depends on its record, the sampling, the seed and the epoch only: not on threads, ranks, or the batch it is in.
"""

from collections import deque
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Self

import numpy as np
import torch

from ddltrain.errors import DataError
from ddltrain.input import _image
from ddltrain.recipe import DataRecipe

_CROPS = {
    "random-resized": _image.CropKind.random_resized,
    "pad": _image.CropKind.pad,
    "center": _image.CropKind.center,
}
_PRECISIONS = {"fast": _image.Precision.fast, "exact": _image.Precision.exact}
_OUTPUTS = {
    "uint8": (_image.OutputType.uint8, torch.uint8),
    "float32": (_image.OutputType.float32, torch.float32),
    "bfloat16": (_image.OutputType.bfloat16, torch.bfloat16),
}


class RecordError(DataError):
    """A record of a batch is damaged.

    Attributes:
        place: of the record in the batch, from 0.
        reason: what is wrong with it.
    """

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(f"image {place} of the batch does not decode: {reason}; prepare the data set again")
        self.place = place
        self.reason = reason


@dataclass(frozen=True)
class Sampling:
    """What becomes of a picture.

    Attributes:
        image_size: side of the result, in pixels.
        crop: "random-resized", "pad" or "center", as `data.train_crop` of a recipe.
        resize: for "center", the shorter side before the crop.
        scale: for "random-resized", area of the window as a part of the picture's.
        ratio: for "random-resized", width over height of the window.
        padding: for "pad", the black border in pixels of the result.
        flip: mirror half of the pictures.
        mode: "exact" gives what Pillow gives, to one level; "fast" resizes before colours are converted (pictures of some 54 dB).
        output: "uint8", or (pixel / 255 - mean) / std as "float32" or "bfloat16".
        channels_last: memory of the result is [n, size, size, 3].
        mean: per channel, of pixels from 0 to 1.
        std: per channel.
    """

    image_size: int
    crop: str = "center"
    resize: int = 0
    scale: tuple[float, ...] = (0.08, 1.0)
    ratio: tuple[float, ...] = (3 / 4, 4 / 3)
    padding: int = 0
    flip: bool = False
    mode: str = "fast"
    output: str = "uint8"
    channels_last: bool = True
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)

    @property
    def dtype(self) -> torch.dtype:
        return _OUTPUTS[self.output][1]

    def empty_batch(self, num_images: int, pin: bool = False) -> torch.Tensor:
        """Memory for a batch: [num_images, 3, image_size, image_size]."""
        size = self.image_size
        if not self.channels_last:
            return torch.empty((num_images, 3, size, size), dtype=self.dtype, pin_memory=pin)
        images = torch.empty((num_images, size, size, 3), dtype=self.dtype, pin_memory=pin)
        return images.permute(0, 3, 1, 2)

    @cached_property
    def native(self) -> _image.Sampling:
        """The same for the C++ side."""
        mean, std = (torch.tensor(values, dtype=torch.float32) * 255 for values in (self.mean, self.std))
        return _image.Sampling(
            kind=_CROPS[self.crop],
            size=self.image_size,
            resize=self.resize or self.image_size,
            scale=self.scale,
            ratio=self.ratio,
            padding=self.padding,
            flip=self.flip,
            precision=_PRECISIONS[self.mode],
            type=_OUTPUTS[self.output][0],
            channels_last=self.channels_last,
            offset=mean.tolist(),
            factor=(1 / std).tolist(),
        )

    def draw(self, width: int, height: int, seed: int, epoch: int, record: int) -> _image.Crop:
        """The window that is drawn for a record of this size, in pixels of the picture."""
        return _image.draw_crop(self.native, width, height, seed, epoch, record)


def train_sampling(recipe: DataRecipe, output: str = "uint8", channels_last: bool = True) -> Sampling:
    """How pictures are trained on."""
    return _sampling(recipe, recipe.train_crop, recipe.flip, output, channels_last)


def eval_sampling(recipe: DataRecipe, output: str = "uint8", channels_last: bool = True) -> Sampling:
    """How pictures are evaluated: resize, then the centre; draws no random numbers."""
    return _sampling(recipe, "center", False, output, channels_last)


def _sampling(recipe: DataRecipe, crop: str, flip: bool, output: str, channels_last: bool) -> Sampling:
    return Sampling(
        image_size=recipe.image_size,
        crop=crop,
        resize=round(recipe.image_size / recipe.eval_crop),
        scale=recipe.crop_scale,
        ratio=recipe.crop_ratio,
        padding=recipe.crop_padding,
        flip=flip,
        mode=recipe.decode,
        output=output,
        channels_last=channels_last,
        mean=recipe.mean,
        std=recipe.std,
    )


class Ticket:
    """A batch under way."""

    def __init__(self, decoder: _image.BatchDecoder, batch: _image.Batch, memory: tuple[object, ...]) -> None:
        self._decoder = decoder
        self._batch = batch
        self._memory = memory  # must stay while threads read and write it

    def is_done(self) -> bool:
        return self._decoder.is_done(self._batch)

    def wait(self) -> None:
        """Return when all images of the batch are there.

        Raises:
            RecordError: a record is damaged; of several, the first one in the batch.
            RuntimeError: the decoder was left before the batch was done.
        """
        place, reason = self._decoder.wait(self._batch)
        if place >= 0:
            raise RecordError(place, reason)


class BatchDecoder:
    """A pool of threads that decode batches in the order in which they were submitted.

    Use as a context manager: leaving it ends the threads, also with batches under way.
    """

    def __init__(self, num_threads: int) -> None:
        self._decoder = _image.BatchDecoder(num_threads)
        self._under_way: deque[Ticket] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the threads; batches under way stay unfinished."""
        self._decoder.close()
        self._under_way.clear()

    def submit(
        self,
        block: np.ndarray,
        starts: np.ndarray,
        sizes: np.ndarray,
        records: np.ndarray,
        sampling: Sampling,
        seed: int,
        epoch: int,
        out: torch.Tensor,
    ) -> Ticket:
        """Start decoding a batch; returns at once.

        Args:
            block: uint8 [bytes], the memory that holds the records; kept alive until the batch is done.
            starts: int64 [n], where in `block` each record begins.
            sizes: int64 [n], bytes of each record.
            records: int64 [n], the keys of their random numbers.
            sampling: what becomes of the pictures.
            seed, epoch: the other keys.
            out: memory as `sampling.empty_batch(n)` gives it; no one else may use it until the batch is done.
        """
        _check(block, starts, sizes, records, sampling, out)
        batch = self._decoder.submit(
            block.ctypes.data,
            block.size,
            starts,
            sizes,
            records,
            sampling.native,
            seed,
            epoch,
            out.data_ptr(),
        )
        ticket = Ticket(self._decoder, batch, (block, out))
        while self._under_way and self._under_way[0].is_done():
            self._under_way.popleft()
        self._under_way.append(ticket)
        return ticket


def _check(
    block: np.ndarray,
    starts: np.ndarray,
    sizes: np.ndarray,
    records: np.ndarray,
    sampling: Sampling,
    out: torch.Tensor,
) -> None:
    """C++ believes addresses, so what they point to is checked here."""
    size = sampling.image_size
    layout = torch.channels_last if sampling.channels_last else torch.contiguous_format
    if block.dtype != np.uint8 or block.ndim != 1 or not block.flags.c_contiguous:
        raise ValueError("block must be uint8 [bytes] without gaps")
    if not starts.shape == sizes.shape == records.shape == (len(out),):
        raise ValueError(f"starts, sizes and records must have {len(out)} elements, as out has images")
    if out.shape != (len(out), 3, size, size) or out.dtype != sampling.dtype or out.device.type != "cpu":
        raise ValueError(f"out must be {sampling.output} [n, 3, {size}, {size}] in the memory of the CPU")
    if not out.is_contiguous(memory_format=layout):
        raise ValueError(f"out must be {layout} in memory")
