"""Weights from a file into a model: from torchvision, from another trainer or from a checkpoint."""

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from ddltrain.errors import CheckpointError

WRAPPERS = ("module.", "_orig_mod.")  # what DistributedDataParallel and torch.compile put before each name
NUM_NAMED = 3


def load_weights(model: nn.Module, path: str | Path) -> list[str]:
    """Copy the weights in a file into a model of the same layout.

    The file holds a state dict, or a dict that has one under "model" or "state_dict". A classifier (the
    model's last nn.Linear) of another number of classes is left out: the model keeps its own. On an error the
    model stays as it was.

    Returns:
        Messages for the user: what was left out.

    Raises:
        CheckpointError: the file cannot be read, holds other objects than tensors, or does not fit the model.
    """
    wanted = model.state_dict()
    given = _strip_wrappers(_find_state(_read(path), path), wanted, path)
    messages = _leave_out_other_head(model, wanted, given)
    if problems := _differences(wanted, given):
        raise CheckpointError(f"{path} does not fit the model: {'; '.join(problems)}")
    model.load_state_dict(given, strict=False)
    return messages


def _read(path: str | Path) -> object:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"cannot read the weights {path}: {error.strerror or error}") from error
    except Exception as error:  # torch.load lets many kinds through when it meets foreign bytes
        if isinstance(error, pickle.UnpicklingError) and "GLOBAL" in str(error):
            reason = (
                "it holds pickled objects, which could run code; save model.state_dict() alone and load that"
            )
        else:
            reason = "it was not written by torch.save, or it is damaged"
        raise CheckpointError(f"cannot load the weights {path}: {reason}") from error


def _find_state(loaded: object, path: str | Path) -> dict[str, Tensor]:
    """The tensors by name in what the file holds."""
    if isinstance(loaded, dict):
        loaded = next(
            (loaded[key] for key in ("model", "state_dict") if isinstance(loaded.get(key), dict)), loaded
        )
    if isinstance(loaded, dict) and loaded and all(isinstance(value, Tensor) for value in loaded.values()):
        return {str(key): value for key, value in loaded.items()}
    raise CheckpointError(
        f"no weights in {path}: it must hold tensors by name (a state_dict), alone or under"
        ' "model" or "state_dict"'
    )


def _strip_wrappers(
    state: Mapping[str, Tensor], wanted: Mapping[str, Tensor], path: str | Path
) -> dict[str, Tensor]:
    """Take wrappers' prefixes off the names, except where the model has a part of that name itself."""
    stripped: dict[str, Tensor] = {}
    for key, value in state.items():
        name = key
        while name not in wanted and name.startswith(WRAPPERS):
            name = name.partition(".")[2]
        if name in stripped:
            raise CheckpointError(f"{path} holds {name} twice, with and without a prefix; keep one of them")
        stripped[name] = value
    return stripped


def _leave_out_other_head(model: nn.Module, wanted: dict[str, Tensor], given: dict[str, Tensor]) -> list[str]:
    """Take the classifier out of both dicts if it differs in the number of classes and in nothing else."""
    heads = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not heads:
        return []
    weight = f"{heads[-1]}.weight" if heads[-1] else "weight"
    bias = f"{heads[-1]}.bias" if heads[-1] else "bias"
    ours, theirs = wanted[weight], given.get(weight)
    if theirs is None or theirs.ndim != 2 or theirs.shape[1:] != ours.shape[1:] or len(theirs) == len(ours):
        return []
    for name in (weight, bias):
        wanted.pop(name, None)
        given.pop(name, None)
    return [
        f"{heads[-1]} is not loaded and starts afresh: {len(theirs)} classes in the file, {len(ours)} here"
    ]


def _differences(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    """What keeps the tensors in the file from filling the model, in words."""
    # Files from before 2018 lack the batch counters, which nothing here reads.
    missing = [name for name in wanted if name not in given and not name.endswith(".num_batches_tracked")]
    unexpected = [name for name in given if name not in wanted]
    misshapen = [
        f"{name} ({_shape(given[name])} in the file, {_shape(tensor)} in the model)"
        for name, tensor in wanted.items()
        if name in given and given[name].shape != tensor.shape
    ]
    kinds = {"missing": missing, "unexpected": unexpected, "of another shape": misshapen}
    return [f"{kind}: {_first(names)}" for kind, names in kinds.items() if names]


def _first(names: list[str]) -> str:
    more = len(names) - NUM_NAMED
    return ", ".join(names[:NUM_NAMED]) + (f" and {more} more" if more > 0 else "")


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a single number"
