"""In what precision a network computes. Weights, scores, loss, statistics and sums are float32 always."""

import torch

from ddltrain.errors import RecipeError

_LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}


def check_precision(name: str, device: torch.device) -> None:
    """Raises RecipeError where a device does not offer a precision."""
    if name == "fp16" and device.type == "cpu":
        raise RecipeError(
            'train.precision = "fp16" needs a GPU, and this rank runs on the CPU; set train.precision=bf16 or fp32'
        )


def autocast(name: str, device: torch.device) -> torch.autocast:
    """The context in which a network runs: "fp32", "bf16" or "fp16"."""
    return torch.autocast(device.type, _LOW.get(name, torch.bfloat16), enabled=name in _LOW)


def make_scaler(name: str, device: torch.device) -> torch.amp.GradScaler:
    """Scales the loss where gradients would vanish in float16, and skips steps whose gradients are not finite; else does nothing.

    Gradients are unscaled after the sum over ranks, so that all ranks skip the same steps.
    """
    return torch.amp.GradScaler(device.type, enabled=name == "fp16")
