"""From an image to the network's input: crop, resize and flip, in one resize per image.

Randomness is keyed by (seed, epoch, record), so it depends neither on ranks nor on threads. Resizing is Pillow's antialiased bilinear
filter, for training and evaluation alike. Results are uint8; the device normalizes them.
"""

import math
from collections.abc import Callable

import numpy as np
from PIL import Image

from ddltrain.recipe import DataRecipe

Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels of the source
Transform = Callable[[Image.Image, np.random.Generator], np.ndarray]  # result: uint8 [size, size, 3]

_CROP_TRIES = 10


def record_generator(seed: int, epoch: int, record: int) -> np.random.Generator:
    """The random numbers of one record in one epoch."""
    return np.random.Generator(np.random.Philox(key=[seed, epoch], counter=[0, 0, 1, record]))


def eval_resize_of(recipe: DataRecipe) -> int:
    """The shorter side before the centre crop."""
    return round(recipe.image_size / recipe.eval_crop)


def center_box(width: int, height: int, resize: int, size: int) -> Box:
    """The window of the source that "resize the shorter side to `resize`, then crop `size` from the centre" shows."""
    resized = (
        (resize, int(resize * height / width)) if width <= height else (int(resize * width / height), resize)
    )
    left, top = (round((side - size) / 2.0) for side in resized)
    across, down = width / resized[0], height / resized[1]
    return left * across, top * down, (left + size) * across, (top + size) * down


def random_resized_box(
    generator: np.random.Generator,
    width: int,
    height: int,
    scale: tuple[float, ...],
    ratio: tuple[float, ...],
) -> Box:
    """A window of random area and aspect ratio (Szegedy et al. 2014); after ten misfits, the largest centred one in range."""
    for _ in range(_CROP_TRIES):
        area = width * height * generator.uniform(scale[0], scale[1])
        aspect = math.exp(generator.uniform(math.log(ratio[0]), math.log(ratio[1])))
        crop_width, crop_height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            left = int(generator.integers(0, width - crop_width + 1))
            top = int(generator.integers(0, height - crop_height + 1))
            return left, top, left + crop_width, top + crop_height
    aspect = min(max(width / height, ratio[0]), ratio[1])
    crop_width, crop_height = min(width, round(height * aspect)), min(height, round(width / aspect))
    left, top = (width - crop_width) // 2, (height - crop_height) // 2
    return left, top, left + max(crop_width, 1), top + max(crop_height, 1)


def resized_window(image: Image.Image, box: Box, size: int) -> np.ndarray:
    """The window `box` of an RGB image at `size` x `size`: uint8 [size, size, 3]."""
    if image.size == (size, size) and tuple(box) == (0.0, 0.0, float(size), float(size)):
        return np.asarray(image)
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=box))


def eval_transform(recipe: DataRecipe) -> Transform:
    """Resize and centre crop; draws no random numbers."""
    resize, size = eval_resize_of(recipe), recipe.image_size

    def transform(image: Image.Image, _: np.random.Generator) -> np.ndarray:
        return resized_window(image, center_box(image.width, image.height, resize, size), size)

    return transform


def train_transform(recipe: DataRecipe) -> Transform:
    """The crop that `data.train_crop` names, then a flip half of the time where `data.flip` asks for it."""
    crop = {"random-resized": _random_resized, "pad": _padded, "center": eval_transform}[recipe.train_crop](
        recipe
    )

    def transform(image: Image.Image, generator: np.random.Generator) -> np.ndarray:
        pixels = crop(image, generator)
        return pixels[:, ::-1] if recipe.flip and generator.random() < 0.5 else pixels

    return transform


def _random_resized(recipe: DataRecipe) -> Transform:
    def transform(image: Image.Image, generator: np.random.Generator) -> np.ndarray:
        box = random_resized_box(generator, *image.size, recipe.crop_scale, recipe.crop_ratio)
        return resized_window(image, box, recipe.image_size)

    return transform


def _padded(recipe: DataRecipe) -> Transform:
    """The whole centred square, a black border, and a window at random in it (He et al. 2015 on CIFAR)."""
    size, padding = recipe.image_size, recipe.crop_padding

    def transform(image: Image.Image, generator: np.random.Generator) -> np.ndarray:
        square = resized_window(image, center_box(image.width, image.height, size, size), size)
        top, left = generator.integers(0, 2 * padding + 1, size=2)
        padded = np.pad(square, ((padding, padding), (padding, padding), (0, 0)))
        return padded[top : top + size, left : left + size]

    return transform
