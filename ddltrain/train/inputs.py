"""From a decoded batch to the network's input: to the device, then normalized there."""

import torch

from ddltrain.recipe import DataRecipe


class Normalizer:
    """Turns uint8 images into normalized float32 on the device."""

    def __init__(self, recipe: DataRecipe, device: torch.device, channels_last: bool) -> None:
        self._device = device
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        self._mean = torch.tensor(recipe.mean, device=device).view(1, 3, 1, 1) * 255
        self._scale = 1 / (torch.tensor(recipe.std, device=device).view(1, 3, 1, 1) * 255)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """uint8 [n, 3, height, width] on the CPU -> float32 of the same shape on the device: (image / 255 - mean) / std."""
        moved = images.to(self._device, non_blocking=True)
        return moved.to(torch.float32, memory_format=self._format).sub_(self._mean).mul_(self._scale)
