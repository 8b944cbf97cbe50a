"""The ways from pictures in memory to images in memory that the input benchmark compares. All see the same windows of them."""

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms.v2 import InterpolationMode, functional

from ddltrain.bench.input_pictures import Pictures
from ddltrain.input._image import Crop
from ddltrain.input.decode import BatchDecoder, Sampling, Ticket

Route = Callable[[int], None]  # decodes all pictures once, in the epoch given

SEED = 0
BATCH_IMAGES = 64
_BATCHES_AHEAD = 2


@dataclass(frozen=True)
class Case:
    """One line of the table. `mode` is empty for routes that have but one."""

    route: str
    mode: str
    phase: str
    threads: int
    output: str


def samplings(image_size: int) -> dict[str, Sampling]:
    """What ImageNet is trained on and evaluated with."""
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    train = Sampling(image_size, "random-resized", flip=True, mean=mean, std=std)
    return {
        "train": train,
        "eval": replace(train, crop="center", resize=round(image_size / 0.875), flip=False),
    }


def own(pictures: Pictures, sampling: Sampling, decoder: BatchDecoder) -> Route:
    """Batches into reused memory, a few under way."""
    count = len(pictures)
    memory = [sampling.empty_batch(min(count, BATCH_IMAGES)) for _ in range(_BATCHES_AHEAD + 1)]
    records = np.arange(count)

    def run(epoch: int) -> None:
        tickets: list[Ticket] = []
        for number, first in enumerate(range(0, count, BATCH_IMAGES)):
            if number > _BATCHES_AHEAD:
                tickets[number - _BATCHES_AHEAD - 1].wait()
            part = slice(first, min(first + BATCH_IMAGES, count))
            out = memory[number % len(memory)][: part.stop - first]
            starts, sizes = pictures.starts[part], pictures.sizes[part]
            tickets.append(
                decoder.submit(pictures.block, starts, sizes, records[part], sampling, SEED, epoch, out)
            )
        for ticket in tickets:
            ticket.wait()

    return run


def pillow(pictures: Pictures, sampling: Sampling, pool: ThreadPoolExecutor, num_threads: int) -> Route:
    """The plain way: decode, resize the window, mirror; into a batch in memory."""
    size = sampling.image_size
    batch = np.empty((len(pictures), size, size, 3), np.uint8)

    def make(place: int, epoch: int) -> None:
        crop = sampling.draw(*pictures.shapes[place], SEED, epoch, place)
        batch[place] = pillow_image(pictures.files[place], sampling, crop)

    return _on_threads(make, len(pictures), pool, num_threads)


def pillow_image(file: bytes, sampling: Sampling, crop: Crop) -> np.ndarray:
    """One picture by Pillow: uint8 [size, size, 3]."""
    image: Image.Image = Image.open(io.BytesIO(file))
    if image.mode != "RGB":
        image = image.convert("RGB")
    box = (crop.left, crop.top, crop.right, crop.bottom)
    image = image.resize((sampling.image_size, sampling.image_size), Image.Resampling.BILINEAR, box=box)
    return np.asarray(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if crop.flip else image)


def torchvision(pictures: Pictures, sampling: Sampling, pool: ThreadPoolExecutor, num_threads: int) -> Route:
    """decode_image and the transforms of v2 on tensors; into a batch in memory."""
    size = sampling.image_size
    batch = torch.empty((len(pictures), 3, size, size), dtype=torch.uint8)
    files = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in pictures.files]

    def make(place: int, epoch: int) -> None:
        crop = sampling.draw(*pictures.shapes[place], SEED, epoch, place)
        batch[place] = torchvision_image(files[place], sampling, crop)

    return _on_threads(make, len(pictures), pool, num_threads)


def torchvision_image(file: torch.Tensor, sampling: Sampling, crop: Crop) -> torch.Tensor:
    """One picture by torchvision: uint8 [3, size, size]."""
    size = sampling.image_size
    image = decode_image(file, ImageReadMode.RGB)
    if sampling.crop == "center":
        image = functional.resize(image, [sampling.resize], InterpolationMode.BILINEAR, antialias=True)
        image = functional.center_crop(image, [size, size])
    else:
        image = image[:, int(crop.top) : int(crop.bottom), int(crop.left) : int(crop.right)]
        image = functional.resize(image, [size, size], InterpolationMode.BILINEAR, antialias=True)
    mirrored: torch.Tensor = functional.horizontal_flip(image) if crop.flip else image
    return mirrored


def _on_threads(
    make: Callable[[int, int], None], count: int, pool: ThreadPoolExecutor, num_threads: int
) -> Route:
    def run_part(part: int, epoch: int) -> None:
        for place in range(part, count, num_threads):
            make(place, epoch)

    def run(epoch: int) -> None:
        for future in [pool.submit(run_part, part, epoch) for part in range(num_threads)]:
            future.result()

    return run
