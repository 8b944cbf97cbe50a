"""What values a key of a recipe takes, and how to say so."""

import dataclasses
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin

from ddltrain.errors import RecipeError

_LARGEST = sys.float_info.max


@dataclass(frozen=True)
class Range:
    """What values a key takes, and how to say so."""

    text: str
    holds: Callable[[Any], bool]


def one_of(*choices: str) -> Range:
    return Range("one of " + ", ".join(f'"{choice}"' for choice in choices), lambda value: value in choices)


def at_least(low: float) -> Range:
    return Range(f"{low} or more", lambda value: value >= low)


def auto_or_count() -> Range:
    return Range(
        '"auto", or 1 or more', lambda value: value == "auto" or (isinstance(value, int) and value >= 1)
    )


def above(low: float) -> Range:
    return Range(f"above {low}", lambda value: value > low)


def between(low: float, high: float) -> Range:
    return Range(f"from {low} to {high}", lambda value: low <= value <= high)


def below_one() -> Range:
    return Range("from 0 up to but not including 1", lambda value: 0 <= value < 1)


def rising(length: int | None, low: float, high: float) -> Range:
    """A list of rising numbers, of the given length (None: any)."""
    size = "rising numbers" if length is None else f"{length} rising numbers"
    return Range(
        f"{size} from {low} to {high}",
        lambda values: (
            (length is None or len(values) == length)
            and all(low <= value <= high for value in values)
            and list(values) == sorted(values)
        ),
    )


def three(above_zero: bool) -> Range:
    """One number per color channel."""
    return Range(
        "3 numbers" + (" above 0" if above_zero else ""),
        lambda values: len(values) == 3 and all(value > 0 or not above_zero for value in values),
    )


def fractions() -> Range:
    """A list of fractions of the peak rate."""
    return Range("numbers from 0 to 1", lambda values: all(0 <= value <= 1 for value in values))


def sizes_by_epoch() -> Range:
    """Pairs of an epoch and the image size from it on."""

    def holds(pairs: Any) -> bool:
        if not all(len(pair) == 2 and 1 <= pair[1] <= 4096 for pair in pairs):
            return False
        epochs = [pair[0] for pair in pairs]
        return not pairs or (epochs[0] == 0 and all(a < b for a, b in itertools.pairwise(epochs)))

    return Range("pairs [epoch, size] with rising epochs from 0 on, such as [[0, 128], [10, 192]]", holds)


def randaugment() -> Range:
    """Nothing, or the two numbers of RandAugment."""
    return Range(
        "[number of operations from 1 to 10, magnitude from 0 to 30], or [] for none",
        lambda values: not values or (len(values) == 2 and 1 <= values[0] <= 10 and 0 <= values[1] <= 30),
    )


NOT_EMPTY = Range("a text that is not empty", bool)
ANY = Range("any", lambda _: True)


def key(allowed: Range, default: Any = dataclasses.MISSING) -> Any:
    """A recipe key with its range; without a default it must be given."""
    return field(default=default, metadata={"range": allowed})


def check_value(value: Any, kind: Any, allowed: Range, where: str) -> Any:
    """A value from TOML as the `kind` of its key; `where` names file and key.

    Raises:
        RecipeError: wrong type, or out of range.
    """
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise RecipeError(f"{where} = {value!r} is not a list; it takes {allowed.text}")
        inner = get_args(kind)[0]
        if get_origin(inner) is tuple and not all(isinstance(item, list) for item in value):
            raise RecipeError(f"{where} = {value!r} is not a list of lists; it takes {allowed.text}")
        checked: Any = tuple(
            tuple(_check_type(part, get_args(inner)[0], allowed, where) for part in item)
            if isinstance(item, list)
            else _check_type(item, inner, allowed, where)
            for item in value
        )
    else:
        checked = _check_type(value, kind, allowed, where)
    if not allowed.holds(checked):
        raise RecipeError(f"{where} = {value!r} is out of range; it takes {allowed.text}")
    return checked


def _check_type(value: Any, kind: type, allowed: Range, where: str) -> Any:
    names = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
    name = names.get(kind, "a whole number or a text")
    fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
    if not fits or (isinstance(value, bool) and kind is not bool):
        extra = "" if allowed is ANY else f" ({allowed.text})"
        raise RecipeError(f"{where} = {value!r} has the wrong type; it takes {name}{extra}")
    if kind is float and not abs(value) <= _LARGEST:
        raise RecipeError(f"{where} = {value} is not a finite number; it takes {allowed.text}")
    return float(value) if kind is float else value
