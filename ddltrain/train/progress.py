"""What a person sees while a run trains: one live line per epoch on a terminal, plain lines anywhere else.

    epoch 3/8 ━━━━━━━━───────── 211/390  loss 0.512  top-1 82.31 %  lr 0.08  3120 img/s  ETA 0:12 (run 1:14)

When an epoch ends its line stays, without the bar and with the validation. Ranks run under mpiexec, so
standard output is a pipe even when a person watches; the launcher then says in the environment variable
DDL_TERMINAL how many columns the terminal has. Nobody watching any more (a closed pipe, a lost terminal) is
no reason to stop training.
"""

import contextlib
import io
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol, TextIO, cast

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

from ddltrain.comm.world import launcher_size
from ddltrain.errors import RunError

PLAIN_INTERVAL_S = 10.0
_LIVE_INTERVAL_S = 0.1
_MAX_BAR = 30
_MIN_BAR = 8

# Paths and messages are printed as they are: no "[...]" taken for markup, no line broken at the width.
_AS_WRITTEN: dict[str, Any] = {"highlight": False, "markup": False, "soft_wrap": True}


class Accuracy(Protocol):
    """The part of an evaluation that a progress line shows."""

    @property
    def top1(self) -> float:
        """Percent of images whose best guess is right."""


def make_console() -> Console:
    """The console for everything a command prints; it survives a reader that goes away.

    Raises:
        RunError: DDL_TERMINAL is not a number of columns.
    """
    columns = os.environ.get("DDL_TERMINAL", "")
    if columns and not columns.isdecimal():
        raise RunError(
            f"environment variable DDL_TERMINAL is {columns!r}, but must be the terminal's number of columns "
            "(unset it for plain lines)"
        )
    stream = cast(TextIO, _PatientStream(sys.stdout)) if sys.stdout is not None else None
    if columns and int(columns) > 0:
        return Console(file=stream, force_terminal=True, width=int(columns), **_AS_WRITTEN)
    # Some launchers give ranks a terminal of their own, even when they themselves write to a file.
    is_terminal = stream is not None and stream.isatty() and launcher_size(os.environ) is None
    return Console(file=stream, force_terminal=is_terminal, **_AS_WRITTEN)


class Progress:
    """Shows how training goes; rank 0 alone has one."""

    def __init__(
        self, num_epochs: int, console: Console, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepares to show `num_epochs` epochs; nothing is printed yet.

        Args:
            num_epochs: epochs of the whole run.
            console: where to write; it decides between live and plain lines.
            clock: seconds that never go back.
        """
        self._num_epochs = num_epochs
        self._console = console
        self._clock = clock
        self._live = console.is_terminal and not console.is_dumb_terminal
        self._line: Text | None = None  # the live line on the screen now
        self._loading: Text | None = None  # as long as images are loaded
        self._last_shown_s = -math.inf
        self._epoch = 0
        self._num_steps = 1
        self._first_mark: tuple[int, float] | None = (
            None  # steps done and time at the first update of this epoch
        )
        self._last_mark = (0, 0.0)
        self._step_s: float | None = None
        self._validation_s = 0.0

    def loading(self, done_bytes: int, total_bytes: int, elapsed_s: float) -> None:
        """Tells how far the images are loaded: on a line of its own before the first step, then on the epoch's line.

        The last call, with all bytes done, leaves a line that stays.
        """
        rate = f"{_mib(done_bytes / elapsed_s if elapsed_s else 0.0)}/s"
        if done_bytes >= total_bytes:
            self._loading = None
            self.message(f"loaded {_mib(total_bytes)} of images in {elapsed_s:.1f} s ({rate})")
            return
        self._loading = Text(f"loading {_mib(done_bytes)} of {_mib(total_bytes)} ({rate})")
        now = self._clock()
        interval_s = _LIVE_INTERVAL_S if self._live else PLAIN_INTERVAL_S
        if self._first_mark is None and now - self._last_shown_s >= interval_s:
            self._last_shown_s = now
            if self._live:
                self._draw(Text(" ").join([_bar(done_bytes, total_bytes, _MAX_BAR), self._loading]))
            else:
                self._print(self._loading)

    def start_epoch(self, epoch: int, num_steps: int, first_step: int) -> None:
        """Begins an epoch.

        Args:
            epoch: the epoch, from 0.
            num_steps: steps of the whole epoch.
            first_step: steps of it that were done before (resumed in mid-epoch), else 0.
        """
        self._epoch = epoch
        self._num_steps = num_steps
        self._first_mark = None
        self._last_mark = (first_step, self._clock())
        self._last_shown_s = -math.inf if self._live else self._clock()

    def update(self, step_in_epoch: int, loss: float, top1: float, lr: float, images_per_s: float) -> None:
        """Tells the figures of the latest steps; cheap, can be called after every step.

        Args:
            step_in_epoch: steps of this epoch that are done, 1 to num_steps.
            loss: mean loss of late.
            top1: percent of late.
            lr: learning rate.
            images_per_s: images a second over all ranks.
        """
        now = self._clock()
        if self._first_mark is None:
            self._first_mark = (
                step_in_epoch,
                now,
            )  # the first step warms up, so it does not count for the rate
        elif step_in_epoch > self._first_mark[0]:
            self._step_s = (now - self._first_mark[1]) / (step_in_epoch - self._first_mark[0])
        self._last_mark = (step_in_epoch, now)
        is_last = step_in_epoch >= self._num_steps
        if now - self._last_shown_s < (_LIVE_INTERVAL_S if self._live else PLAIN_INTERVAL_S) and not (
            self._live and is_last
        ):
            return
        self._last_shown_s = now
        figures = [_loss(loss), Text(f"top-1 {top1:.2f} %"), Text(f"lr {lr:.3g}"), _rate(images_per_s)]
        figures.append(Text("validating") if is_last and self._live else self._eta())
        if self._loading is not None:
            figures.append(self._loading)
        if self._live:
            self._draw(self._live_line(step_in_epoch, figures))
        else:
            self._print(_joined([self._title(), Text(f"step {step_in_epoch}/{self._num_steps}"), *figures]))

    def end_epoch(self, loss: float, top1: float, images_per_s: float, evaluation: Accuracy | None) -> None:
        """Ends the epoch with the line that stays.

        Args:
            loss: mean training loss of the epoch.
            top1: training accuracy of the epoch in percent.
            images_per_s: images a second over all ranks in training.
            evaluation: the validation after this epoch, if there was one.
        """
        self._validation_s = max(0.0, self._clock() - self._last_mark[1])
        figures = [self._title(), _loss(loss), Text(f"top-1 {top1:.2f} %")]
        if evaluation is not None:
            figures.append(Text(f"val {evaluation.top1:.2f} %", style="bold green"))
        figures.append(_rate(images_per_s))
        epochs_left = self._num_epochs - self._epoch - 1
        if epochs_left > 0 and self._step_s is not None:
            rest_s = epochs_left * (self._num_steps * self._step_s + self._validation_s)
            figures.append(Text(f"ETA {_duration(rest_s)}"))
        self._erase()
        self._print(_joined(figures))

    def message(self, text: str) -> None:
        """Prints a message above the live line."""
        line = self._line
        self._erase()
        self._print(Text(text))
        if line is not None:
            self._draw(line)

    def close(self) -> None:
        """Leaves the screen in order: an unfinished epoch's line stays; a second call does nothing."""
        if self._line is not None:
            self._line = None
            self._console.print()

    def _title(self) -> Text:
        return Text(f"epoch {self._epoch + 1}/{self._num_epochs}", style="bold")

    def _eta(self) -> Text:
        """Time left in the epoch's steps, and in the whole run with its validations."""
        if self._step_s is None:
            return Text("ETA -:--")
        epoch_s = (self._num_steps - self._last_mark[0]) * self._step_s
        epochs_left = self._num_epochs - self._epoch - 1
        run_s = (
            epoch_s + self._validation_s + epochs_left * (self._num_steps * self._step_s + self._validation_s)
        )
        return Text(f"ETA {_duration(epoch_s)} (run {_duration(run_s)})")

    def _live_line(self, done: int, figures: list[Text]) -> Text:
        """A bar takes the room that the figures leave; without room it goes, and then the learning rate."""
        steps = Text(f"{done}/{self._num_steps}")
        right = _joined([steps, *figures])
        room = self._console.width - len(self._title()) - len(right) - 2
        width = min(_MAX_BAR, room - 1)
        if width >= _MIN_BAR:
            bar = _bar(done, self._num_steps, width)
            return Text(" ").join([self._title(), bar, right])
        if room < 0:
            right = _joined([steps, *(figure for figure in figures if not figure.plain.startswith("lr "))])
        return Text(" ").join([self._title(), right])

    def _draw(self, line: Text) -> None:
        """Replaces the live line in one write, the new text over the old one, so that nothing flickers."""
        line = line.copy()
        line.truncate(self._console.width - 1, overflow="crop")  # a full row would wrap
        with self._console:
            self._console.control(Control(ControlType.CARRIAGE_RETURN))
            self._console.print(line, end="", soft_wrap=True)
            self._console.control(Control((ControlType.ERASE_IN_LINE, 0)))
        self._line = line

    def _erase(self) -> None:
        if self._line is not None:
            self._line = None
            self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))

    def _print(self, line: Text) -> None:
        self._console.print(line, soft_wrap=True)


class _PatientStream(io.TextIOBase):
    """A text stream that turns silent, after a word on standard error, when nobody can read it any more."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_lost = False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding or "utf-8"

    def isatty(self) -> bool:
        return not self._stream.closed and self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str) -> int:
        self._try(lambda: self._write_encodable(text))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _write_encodable(self, text: str) -> None:
        try:
            self._stream.write(text)
        except UnicodeEncodeError:
            self._stream.write(text.encode(self.encoding, "replace").decode(self.encoding))

    def _try(self, action: Callable[[], object]) -> None:
        if self._is_lost:
            return
        try:
            action()
        except BlockingIOError:
            return  # a slow reader on a non-blocking pipe: what does not fit now is lost, later lines are not
        except (OSError, ValueError) as error:  # ValueError: the stream was closed
            self._is_lost = True
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor needs no silencing
            # What is still buffered would fail once more at exit, and turn the exit status into a failure.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)
        with contextlib.suppress(
            OSError, ValueError
        ):  # standard error may be gone too: nobody is left to tell
            text = f"WARNING: cannot write to standard output any more ({error}); training goes on."
            print(text, file=sys.stderr, flush=True)


def _bar(done: int, total: int, width: int) -> Text:
    full = min(width, width * done // max(1, total))
    return Text.assemble(("━" * full, "cyan"), ("─" * (width - full), "dim"))


def _mib(num_bytes: float) -> str:
    return f"{num_bytes / (1 << 20):.1f} MiB"


def _joined(parts: list[Text]) -> Text:
    return Text("  ").join(parts)


def _loss(loss: float) -> Text:
    return Text(f"loss {loss:.3f}", style="" if math.isfinite(loss) else "bold red")


def _rate(images_per_s: float) -> Text:
    return Text(f"{images_per_s:.0f} img/s")


def _duration(seconds: float) -> str:
    """Writes 62 as 1:02 and 3723 as 1:02:03."""
    minutes, whole_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{whole_s:02d}" if hours else f"{minutes}:{whole_s:02d}"
