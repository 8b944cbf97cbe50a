"""What long commands say of how far they are."""

import io

import pytest
from rich.console import Console

from ddltrain.cli import counter


def test_a_plain_line_tells_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(counter.time, "monotonic", lambda: now_s)
    console = Console(file=io.StringIO(), highlight=False)
    with counter.show_counter(console, "images") as advance:
        for second in range(1, 25):
            now_s = float(second)
            advance("train", 1000 + 50 * second, 10_000)  # the first 1,050 were there already
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines == [
        "train: 1500 of 10000 images, 50 a second, 0:02:50 left",
        "train: 2000 of 10000 images, 50 a second, 0:02:40 left",
    ]


def test_a_terminal_gets_a_bar_for_each_part() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with counter.show_counter(console, "images") as advance:
        for part in ("train", "val"):
            for done in range(1, 4):
                advance(part, done, 3)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "train" in shown
    assert "val" in shown
    assert "3/3" in shown
