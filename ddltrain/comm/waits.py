"""What this process waits for other ranks in, where something else than our engine does the waiting and can tell nothing."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_under_way: list[tuple[float, str, Callable[[], str]]] = []


def _some() -> str:
    return "some other rank"


@contextmanager
def waiting(what: str, whom: Callable[[], str] = _some) -> Iterator[None]:
    """Within the block this process may wait for others in `what`; `whom` tells for which, when it is asked."""
    entry = (time.monotonic(), what, whom)
    _under_way.append(entry)
    try:
        yield
    finally:
        _under_way.remove(entry)


def oldest_wait() -> tuple[float, str]:
    """How long it has waited, in seconds, and in what for whom; 0 and "" where it does not. From any thread."""
    for since_s, what, whom in list(_under_way):
        return time.monotonic() - since_s, f"{what} waits for {whom()}"
    return 0.0, ""
