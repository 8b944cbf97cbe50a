"""From a decoded batch to the network's input.

On the CPU the decoder's threads normalize while they write a batch, which is quicker than to go over it once more. A GPU gets uint8, a
quarter of the bytes, and normalizes by itself.
"""

import torch

from ddltrain.recipe import DataRecipe


def output_for(device: torch.device, recipe: DataRecipe) -> str:
    """What the decoder is to give for a device. RandAugment works on pixels."""
    return "float32" if device.type == "cpu" and not recipe.randaugment else "uint8"


class Normalizer:
    """Brings images to the device, as normalized float32."""

    def __init__(self, recipe: DataRecipe, device: torch.device, channels_last: bool) -> None:
        self._device = device
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        self._mean = torch.tensor(recipe.mean, device=device).view(1, 3, 1, 1) * 255
        self._scale = 1 / (torch.tensor(recipe.std, device=device).view(1, 3, 1, 1) * 255)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """[n, 3, height, width] on the CPU -> float32 on the device: of uint8 (image / 255 - mean) / std, of float32 the same values."""
        moved = images.to(self._device, non_blocking=True)
        if images.is_floating_point():
            return moved
        return moved.to(torch.float32, memory_format=self._format).sub_(self._mean).mul_(self._scale)
