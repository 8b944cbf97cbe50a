"""From a rank's images of a step to what the network sees and is held against."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ddltrain.input.colors import Augmenter, ColorChange
from ddltrain.input.mixing import Targets, mix, mix_generator
from ddltrain.recipe import Recipe
from ddltrain.train.inputs import Normalizer


class Augment:
    """uint8 images -> RandAugment -> normalized, on the device -> size of the epoch -> colors -> mixed."""

    def __init__(self, recipe: Recipe, rank: int, normalize: Normalizer) -> None:
        self._data, self._seed, self._rank = recipe.data, recipe.train.seed, rank
        self._normalize = normalize
        self._augment = Augmenter(recipe.data, recipe.train.seed)
        self._color = ColorChange(recipe.data, recipe.train.seed)

    def __call__(
        self, images: Tensor, labels: Tensor, records: np.ndarray, epoch: int, step: int, part: int
    ) -> tuple[Tensor, Targets]:
        """Images uint8 [n, 3, size, size] and labels int64 [n] of `records`, int64 [n]; n may be 0.

        Args:
            step: of the run.
            part: which part of the step, where gradients accumulate.
        """
        ready = self._normalize(self._augment(images, records, epoch))
        ready = resized(ready, size_of_epoch(self._data.progressive_size, epoch, self._data.image_size))
        ready = self._color(ready, records, epoch)
        moved = labels.to(ready.device, non_blocking=True)
        return mix(ready, moved, self._data, mix_generator(self._seed, step, self._rank, part))


def size_of_epoch(sizes: tuple[tuple[int, int], ...], epoch: int, usual: int) -> int:
    """The image size of an epoch: the last pair [epoch, size] that has begun; without pairs the usual one."""
    begun = [size for first, size in sizes if first <= epoch]
    return begun[-1] if begun else usual


def resized(images: Tensor, size: int) -> Tensor:
    """float [n, 3, height, width] -> [n, 3, size, size], smoothed where it shrinks."""
    if images.shape[2:] == (size, size):
        return images
    if not len(images):
        return images.new_zeros(0, images.shape[1], size, size)
    layout = (
        torch.channels_last
        if images.is_contiguous(memory_format=torch.channels_last)
        else torch.contiguous_format
    )
    small = F.interpolate(images, (size, size), mode="bilinear", antialias=True, align_corners=False)
    return small.contiguous(memory_format=layout)
