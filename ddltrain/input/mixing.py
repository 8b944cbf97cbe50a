"""Mixup and cutmix: pairs of images of a batch become one, and so do their labels.

    mixup (Zhang et al. 2017)    image = share * image + (1 - share) * other            share ~ Beta(alpha, alpha)
    cutmix (Yun et al. 2019)     a window of 1 - share of the area shows the other      share ~ Beta(alpha, alpha)

One share and one order of partners is drawn for the batch. Where both are asked for, each batch takes one of them, by a coin.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ddltrain.recipe import DataRecipe


@dataclass(frozen=True)
class Targets:
    """What scores are held against.

    Attributes:
        labels: int64 [n], of the images that have `share`.
        others: int64 [n], of what was mixed in; None where nothing was.
        share: from 0 to 1.
    """

    labels: Tensor
    others: Tensor | None = None
    share: float = 1.0

    def loss_sum(self, scores: Tensor, label_smoothing: float) -> Tensor:
        """Cross entropy of float32 scores [n, classes], summed over the images."""
        own = F.cross_entropy(scores, self.labels, reduction="sum", label_smoothing=label_smoothing)
        if self.others is None:
            return own
        other = F.cross_entropy(scores, self.others, reduction="sum", label_smoothing=label_smoothing)
        return self.share * own + (1 - self.share) * other

    def num_correct(self, scores: Tensor) -> Tensor:
        """Images whose best score is that of the label with the larger share."""
        main = self.labels if self.others is None or self.share >= 0.5 else self.others
        return (scores.argmax(dim=1) == main).sum()


def mix_generator(seed: int, step: int, rank: int, part: int) -> np.random.Generator:
    """The random numbers of one batch; with accumulation a step has several parts."""
    return np.random.Generator(np.random.Philox(key=[seed, step], counter=[0, 1, part, rank]))


def mix(
    images: Tensor, labels: Tensor, recipe: DataRecipe, generator: np.random.Generator
) -> tuple[Tensor, Targets]:
    """Mix a batch as `data.mixup` and `data.cutmix` say; where both are 0, or there are no images, nothing changes.

    Args:
        images: float [n, channels, height, width].
        labels: int64 [n].
    """
    if not len(labels) or not (recipe.mixup or recipe.cutmix):
        return images, Targets(labels)
    takes_mixup = not recipe.cutmix or (recipe.mixup > 0 and generator.random() < 0.5)
    alpha = recipe.mixup if takes_mixup else recipe.cutmix
    share = float(generator.beta(alpha, alpha))
    partners = torch.from_numpy(generator.permutation(len(labels))).to(images.device)
    if takes_mixup:
        return torch.lerp(images[partners], images, share), Targets(labels, labels[partners], share)
    top, bottom, left, right = _window(generator, images.shape[2], images.shape[3], 1 - share)
    mixed = images.clone()
    mixed[:, :, top:bottom, left:right] = images[partners, :, top:bottom, left:right]
    seen = 1 - (bottom - top) * (right - left) / (images.shape[2] * images.shape[3])
    return mixed, Targets(labels, labels[partners], seen)


def _window(
    generator: np.random.Generator, height: int, width: int, area: float
) -> tuple[int, int, int, int]:
    """A window of a fraction of the area about a random centre, cut off at the borders: top, bottom, left, right."""
    side = math.sqrt(area)
    half_height, half_width = int(height * side) // 2, int(width * side) // 2
    row, column = int(generator.integers(height)), int(generator.integers(width))
    return (
        max(row - half_height, 0),
        min(row + half_height, height),
        max(column - half_width, 0),
        min(column + half_width, width),
    )
