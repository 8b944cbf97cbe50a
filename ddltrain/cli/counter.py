"""Shows how far a long command is: a live bar on a terminal, else a plain line now and then."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_PLAIN_EVERY_S = 10.0


class _PlainCounter:
    """Says now and then, in a line, how far it is and for how long it will go on."""

    def __init__(self, console: "Console", what: str) -> None:
        self._console = console
        self._what = what
        self._split = ""
        self._last_s = time.monotonic()

    def __call__(self, split: str, done: int, total: int) -> None:
        now_s = time.monotonic()
        if split != self._split:  # a preparation that goes on does not begin at 0
            self._split, self._start_s, self._start = split, now_s, done
        if now_s - self._last_s >= _PLAIN_EVERY_S and done > self._start:
            self._last_s = now_s
            rate = (done - self._start) / (now_s - self._start_s)
            left = timedelta(seconds=round((total - done) / rate))
            self._console.print(f"{split}: {done} of {total} {self._what}, {rate:.0f} a second, {left} left")


@contextmanager
def show_counter(console: "Console", what: str) -> Iterator[Callable[[str, int, int], None]]:
    """Gives what is to be called with the name of a part, the number of `what` done in it, and their total."""
    if not console.is_terminal:
        yield _PlainCounter(console, what)
        return

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:5}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        tasks: dict[str, Any] = {}

        def advance(part: str, done: int, total: int) -> None:
            if part not in tasks:
                tasks[part] = progress.add_task(part, total=total, completed=done)
            progress.update(tasks[part], completed=done)

        yield advance
