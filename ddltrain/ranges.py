"""What values a key of a recipe takes, and how to say so."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


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


NOT_EMPTY = Range("a text that is not empty", bool)
ANY = Range("any", lambda _: True)


def key(allowed: Range, default: Any = dataclasses.MISSING) -> Any:
    """A recipe key with its range; without a default it must be given."""
    return field(default=default, metadata={"range": allowed})
