"""Sizes of messages as people write them."""

import re

from ddltrain.errors import CommError

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str) -> int:
    """Bytes of 4096, 4K, 25M, 1G (powers of 1024; "KiB" and "KB" mean the same as "K").

    Raises:
        CommError: something else.
    """
    found = re.fullmatch(r"(\d+)\s*([KMG]?)(?:I?B)?", text.strip().upper())
    if not found:
        raise CommError(f"size {text!r}: give a number of bytes, or one with K, M or G, such as 25M")
    return int(found[1]) * _UNITS[found[2]]


def sizes_between(begin_bytes: int, end_bytes: int, factor: int) -> list[int]:
    """`begin_bytes`, and from there on `factor` times as much while that is not above `end_bytes`.

    Raises:
        CommError: values that give no list.
    """
    if not 0 < begin_bytes <= end_bytes or factor < 2:
        raise CommError(
            f"sizes from {begin_bytes} to {end_bytes} by factor {factor}: begin with 1 byte or more, end no lower, and take a factor "
            "of 2 or more"
        )
    sizes = [begin_bytes]
    while sizes[-1] * factor <= end_bytes:
        sizes.append(sizes[-1] * factor)
    return sizes


def format_size(size_bytes: int) -> str:
    """26214400 as "25 MiB"; sizes that are no whole number of a unit in bytes."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit and size_bytes % unit == 0:
            return f"{size_bytes // unit} {name}"
    return f"{size_bytes} B"
