"""A model of the user's own: `model.name = "path/to/file.py:function"`.

The function takes the number of classes and returns an nn.Module. A path that is not absolute counts from the
folder where the command runs.
"""

import importlib.util
import sys
import traceback
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from ddltrain.errors import RecipeError


def is_user_model(name: str) -> bool:
    """Whether `name` means a file of the user's, not one of the built-in networks."""
    return ":" in name or "/" in name or name.endswith(".py")


def build_user_model(name: str, num_classes: int) -> nn.Module:
    """Run the user's file and call its function; `name` is "path/to/file.py:function".

    Raises:
        RecipeError: `name` has another form, no such file, no such function, the user's code raised (the
            message holds its traceback) or returned something else than an nn.Module.
    """
    file, colon, function_name = name.rpartition(":")
    if not colon or not file.endswith(".py") or not function_name:
        raise RecipeError(f'model.name = "{name}": write "path/to/file.py:function"')
    path = Path(file)
    if not path.is_file():
        raise RecipeError(f'model.name = "{name}": no such file: {path.absolute()}')
    module = _run_file(name, path)
    function = _find_function(name, path, module, function_name)
    try:
        model = function(num_classes)
    except (Exception, SystemExit) as error:
        raise _raised_inside(name, f"{function_name}({num_classes})", path, error) from error
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise RecipeError(
            f'model.name = "{name}": {function_name} returned a {kind}, it must return an nn.Module'
        )
    return model


def _run_file(name: str, path: Path) -> ModuleType:
    """Import the file under a name of its own, so that it can hide no installed module."""
    module_name = f"ddltrain_user_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise RecipeError(f'model.name = "{name}": Python cannot import {path}')
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses in the file look their module up here
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _raised_inside(name, "the file", path, error) from error
    return module


def _find_function(name: str, path: Path, module: ModuleType, function_name: str) -> Callable[[int], Any]:
    functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("__")]
    if function_name not in functions:
        nearest = get_close_matches(function_name, functions, n=1)
        hint = f'; did you mean "{nearest[0]}"?' if nearest else f"; it has: {', '.join(functions) or 'none'}"
        raise RecipeError(f'model.name = "{name}": {path} has no function "{function_name}"{hint}')
    function: Callable[[int], Any] = getattr(module, function_name)
    return function


def _raised_inside(name: str, what: str, path: Path, error: BaseException) -> RecipeError:
    """The error to show: one line, then the traceback from the user's file on."""
    entry = error.__traceback__
    while entry is not None and Path(entry.tb_frame.f_code.co_filename).resolve() != path.resolve():
        entry = entry.tb_next
    message = f'model.name = "{name}": {what} raised {type(error).__name__}: {error}'
    if entry is None and not isinstance(error, SyntaxError):  # not in the file, but in how it was called
        return RecipeError(message)
    lines = "".join(traceback.format_exception(type(error), error, entry)).rstrip()
    return RecipeError(f"{message}\n{lines}")
