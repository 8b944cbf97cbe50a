"""The networks: a plain dict from name to constructor, and a user's own from a file."""

from collections.abc import Callable
from difflib import get_close_matches

from torch import nn

from ddltrain.errors import RecipeError
from ddltrain.nets import cifar_resnet, googlenet, quick_resnet, resnet
from ddltrain.nets.user_model import build_user_model, is_user_model
from ddltrain.nets.weights import load_weights

__all__ = ["NETS", "build_model", "load_weights"]

NETS: dict[str, Callable[[int, bool], nn.Module]] = {
    "resnet18": resnet.resnet18,
    "resnet34": resnet.resnet34,
    "resnet50": resnet.resnet50,
    "resnet101": resnet.resnet101,
    "resnet152": resnet.resnet152,
    "googlenet_bn": googlenet.googlenet_bn,
    "resnet20": cifar_resnet.resnet20,
    "resnet32": cifar_resnet.resnet32,
    "resnet44": cifar_resnet.resnet44,
    "resnet56": cifar_resnet.resnet56,
    "resnet110": cifar_resnet.resnet110,
    "quick_resnet8": quick_resnet.quick_resnet8,
}


def build_model(name: str, num_classes: int, zero_init_residual: bool = False) -> nn.Module:
    """Build a network with fresh weights drawn from torch's random generator.

    The networks of NETS take images of any size, float [n, 3, height, width], and give class scores before
    the softmax, float [n, num_classes].

    Args:
        name: A key of NETS, or "path/to/file.py:function".
        num_classes: At least 1.
        zero_init_residual: Whether each residual block starts as relu(shortcut); networks of NETS only.

    Raises:
        RecipeError: unknown name, fewer classes than 1, an error in the user's file, or `zero_init_residual`
            with a user's file.
    """
    if num_classes < 1:
        raise RecipeError(f"a model needs at least 1 class, not {num_classes}")
    if is_user_model(name):
        if zero_init_residual:
            raise RecipeError(
                f'model.zero_init_residual = true is for the built-in networks, not for "{name}"; set model.zero_init_residual=false'
            )
        return build_user_model(name, num_classes)
    if name not in NETS:
        nearest = get_close_matches(name, NETS, n=1, cutoff=0)[0]
        raise RecipeError(
            f'unknown model.name "{name}"; the nearest known one is "{nearest}" of {", ".join(NETS)};'
            ' one of your own is "path/to/file.py:function"'
        )
    return NETS[name](num_classes, zero_init_residual)
