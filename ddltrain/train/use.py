"""A trained model for use in other programs."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from ddltrain.nets import build_model
from ddltrain.recipe import parse_recipe
from ddltrain.train.checkpoint import parse_checkpoint, read_checkpoint, weights_in
from ddltrain.train.inputs import Normalizer


def load_model(
    checkpoint: Path, takes_average: bool = False
) -> tuple[nn.Module, Callable[[Image.Image], torch.Tensor], tuple[str, ...]]:
    """Load a checkpoint on the CPU.

    Args:
        takes_average: take the average of the weights (`train.ema`) instead of the weights.

    Returns:
        The model in evaluation mode; what turns an RGB image into its input, float32 [3, size, size], as in evaluation; and the
        names of the classes, by index.

    Raises:
        CheckpointError: no such file, damaged, or not a checkpoint.
    """
    state = parse_checkpoint(read_checkpoint(checkpoint), str(checkpoint))
    recipe = parse_recipe(state["recipe"], f"the recipe in {checkpoint}")
    model = build_model(recipe.model.name, len(state["classes"])).eval()
    model.load_state_dict(weights_in(state, str(checkpoint), takes_average))
    normalize = Normalizer(recipe.data, torch.device("cpu"), False)
    size, resize = recipe.data.image_size, round(recipe.data.image_size / recipe.data.eval_crop)

    def transform(image: Image.Image) -> torch.Tensor:
        window = _center_box(image.width, image.height, resize, size)
        pixels = np.array(image.resize((size, size), Image.Resampling.BILINEAR, box=window))
        return normalize(torch.from_numpy(pixels).permute(2, 0, 1)[None])[0]

    return model, transform, tuple(state["classes"])


def _center_box(width: int, height: int, resize: int, size: int) -> tuple[float, float, float, float]:
    """The window of a picture that "resize the shorter side to `resize`, then crop `size` from the centre" shows."""
    resized = (
        (resize, int(resize * height / width)) if width <= height else (int(resize * width / height), resize)
    )
    left, top = (round((side - size) / 2.0) for side in resized)
    across, down = width / resized[0], height / resized[1]
    return left * across, top * down, (left + size) * across, (top + size) * down
