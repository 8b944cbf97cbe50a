"""What this process waits for other ranks in, where the MPI library does the waiting and can tell nothing."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

_under_way: list[tuple[float, str]] = []


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Within the block this process may wait for others in `what`."""
    entry = (time.monotonic(), what)
    _under_way.append(entry)
    try:
        yield
    finally:
        _under_way.remove(entry)


def oldest_wait() -> tuple[float, str]:
    """How long it has waited, in seconds, and in what; 0 and "" where it does not. From any thread."""
    for since_s, what in list(_under_way):
        return time.monotonic() - since_s, what
    return 0.0, ""
