"""Changes of color, for each image its own, on whole batches at once: those of the Torch recipe for ResNets, and RandAugment.

    jitter     brightness, contrast and saturation in a random order, each x = a * x + (1 - a) * t with a from 1 - strength to 1 + strength
               t: 0 for brightness, the mean of the gray image for contrast, the gray image for saturation
    lighting   along the main axes of the colors of ImageNet's pixels (Krizhevsky et al. 2012), each axis by N(0, std) times its eigenvalue

Random numbers are keyed by (seed, epoch, record), as the crops are: they hang neither on ranks nor on batches.
"""

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import RandAugment

from ddltrain.recipe import DataRecipe

# Principal components of the RGB values of ImageNet's training images, in units of a pixel from 0 to 1.
_EIGENVALUES = (0.2175, 0.0188, 0.0045)
_EIGENVECTORS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))
_GRAY = (0.299, 0.587, 0.114)

_COLOR_STREAM, _AUGMENT_STREAM = 2, 3  # crops have 1


def _generator(seed: int, epoch: int, record: int, stream: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed, epoch], counter=[0, 0, stream, record]))


class ColorChange:
    """Jitter and lighting as the recipe says, on normalized images."""

    def __init__(self, recipe: DataRecipe, seed: int) -> None:
        self._recipe = recipe
        self._seed = seed

    def __call__(self, images: Tensor, records: np.ndarray, epoch: int) -> Tensor:
        """float32 [n, 3, height, width], normalized -> the same. Pixels may leave their range, as in the Torch recipe.

        Args:
            records: int64 [n], the images' places in the store.
        """
        recipe = self._recipe
        if not len(records) or not (recipe.color_jitter or recipe.lighting):
            return images
        draws = [_generator(self._seed, epoch, int(record), _COLOR_STREAM) for record in records]
        mean = images.new_tensor(recipe.mean).view(1, 3, 1, 1)
        std = images.new_tensor(recipe.std).view(1, 3, 1, 1)
        pixels = images * std + mean
        if recipe.color_jitter:
            orders = np.array([draw.permutation(3) for draw in draws])
            strength = recipe.color_jitter
            factors = np.array([draw.uniform(1 - strength, 1 + strength, 3) for draw in draws])
            pixels = jitter(pixels, torch.from_numpy(orders), torch.from_numpy(factors))
        if recipe.lighting:
            pixels = pixels + lighting(np.array([draw.normal(0, recipe.lighting, 3) for draw in draws])).to(
                pixels
            )
        return (pixels - mean) / std


def jitter(pixels: Tensor, orders: Tensor, factors: Tensor) -> Tensor:
    """Change brightness (0), contrast (1) and saturation (2) of each image.

    Args:
        pixels: float [n, 3, height, width].
        orders: int64 [n, 3], for each image the order of the three.
        factors: float [n, 3], the factor of each of the three.
    """
    weights = pixels.new_tensor(_GRAY).view(1, 3, 1, 1)
    for kinds in orders.to(pixels.device).unbind(dim=1):
        amounts = factors.to(pixels).gather(1, kinds[:, None]).view(-1, 1, 1, 1)
        gray = (pixels * weights).sum(dim=1, keepdim=True)
        kind = kinds.view(-1, 1, 1, 1)
        target = torch.where(kind == 1, gray.mean(dim=(2, 3), keepdim=True), gray) * (kind != 0)
        pixels = amounts * pixels + (1 - amounts) * target
    return pixels


def lighting(amounts: np.ndarray) -> Tensor:
    """What is added to each image for `amounts`, float64 [n, 3], of the three axes: float64 [n, 3, 1, 1]."""
    shifts = (amounts * np.array(_EIGENVALUES)) @ np.array(_EIGENVECTORS).T
    return torch.from_numpy(shifts).view(-1, 3, 1, 1)


class Augmenter:
    """RandAugment (Cubuk et al. 2019) with torchvision's operations, image by image on the CPU."""

    def __init__(self, recipe: DataRecipe, seed: int) -> None:
        self._seed = seed
        self._change = RandAugment(*recipe.randaugment) if recipe.randaugment else None

    def __call__(self, images: Tensor, records: np.ndarray, epoch: int) -> Tensor:
        """uint8 [n, 3, height, width] on the CPU -> a new tensor like it. Leaves torch's random generator as it was."""
        if self._change is None or not len(records):
            return images
        changed = torch.empty_like(images)
        with torch.random.fork_rng(devices=[]):
            for place, record in enumerate(records):
                draw = _generator(self._seed, epoch, int(record), _AUGMENT_STREAM)
                torch.manual_seed(int(draw.integers(1 << 62)))
                changed[place] = self._change(images[place])
        return changed
