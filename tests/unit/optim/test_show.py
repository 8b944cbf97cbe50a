from typing import Any

from ddltrain.optim import Schedule, make_schedule
from ddltrain.optim.show import plot, table
from ddltrain.recipe import ScheduleRecipe


def make(**recipe: Any) -> Schedule:
    return make_schedule(ScheduleRecipe(**recipe), 0.8, 90, 7)


def rows(schedule: Schedule) -> dict[int, list[str]]:
    return {int(line.split()[0]): line.split(maxsplit=3)[1:] for line in table(schedule)[1:]}


def test_the_table_has_every_step_at_which_something_changes() -> None:
    found = rows(make(kind="step", warmup_epochs=5, warmup_start=0.125, milestones=(30, 60)))
    assert found == {
        0: ["0.00", "0.1", "first"],
        1: ["0.14", "0.12", "second"],
        34: ["4.86", "0.78", "last of the warm-up"],
        35: ["5.00", "0.8", "first after the warm-up"],
        209: ["29.86", "0.8", "last before a milestone"],
        210: ["30.00", "0.08", "milestone"],
        419: ["59.86", "0.08", "last before a milestone"],
        420: ["60.00", "0.008", "milestone"],
        629: ["89.86", "0.008", "last"],
    }


def test_the_hybrid_shows_rmsprops_part() -> None:
    lines = table(make(kind="rmsprop-hybrid"))
    assert "RMSprop" in lines[0]
    assert lines[1].split()[:4] == ["0", "0.00", "0.4", "99.08%"]
    assert [line.split()[0] for line in lines[1:]] == [
        "0",
        "1",
        "279",
        "280",
        "489",
        "490",
        "594",
        "595",
        "629",
    ]


def test_steps_of_two_names_come_once_and_none_beyond_the_end() -> None:
    found = rows(make_schedule(ScheduleRecipe(kind="cosine", warmup_epochs=1), 1.0, 1, 1))
    assert found == {0: ["0.00", "0", "first, last of the warm-up, last"]}


def test_the_plot_rises_and_falls() -> None:
    lines = plot(make(kind="cosine", warmup_epochs=30))
    bars = [line.partition("│")[2] for line in lines if "│" in line]
    heights = [sum(bar[column : column + 1] == "█" for bar in bars) for column in range(64)]
    assert heights.index(12) in range(19, 23)
    assert heights[:20] == sorted(heights[:20])
    assert heights[22:] == sorted(heights[22:], reverse=True)
    assert "0.8" in lines[0]
    assert "90 epochs" in lines[-1]
