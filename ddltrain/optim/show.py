"""A schedule for people to look at before they train: a table of the steps that matter, and a plot in text."""

from ddltrain.optim.schedule import Schedule

_WIDTH, _HEIGHT = 64, 12


def table(schedule: Schedule) -> list[str]:
    """One line for each step at which something begins or ends; steps count from 0."""
    names: dict[int, list[str]] = {0: ["first"], 1: ["second"]}
    if warmup := schedule.num_warmup_steps:
        names.setdefault(warmup - 1, []).append("last of the warm-up")
        names.setdefault(warmup, []).append("first after the warm-up")
    for step in schedule.milestone_steps:
        names.setdefault(step - 1, []).append("last before a milestone")
        names.setdefault(step, []).append("milestone")
    names.setdefault(schedule.num_steps - 1, []).append("last")
    is_hybrid = schedule.rmsprop_lr is not None
    lines = [
        f"{'step':>9}{'epoch':>9}{'rate':>13}{'RMSprop':>9}" if is_hybrid else _row("step", "epoch", "rate")
    ]
    for step in sorted(step for step in names if 0 <= step < schedule.num_steps):
        line = _row(str(step), f"{step / schedule.steps_per_epoch:.2f}", f"{schedule(step):.6g}")
        share = f"{100 * schedule.rmsprop_share(step):>8.2f}%" if is_hybrid else ""
        lines.append(f"{line}{share}  {', '.join(names[step])}")
    return lines


def plot(schedule: Schedule) -> list[str]:
    """The rate over the epochs, as lines of text."""
    columns = min(_WIDTH, schedule.num_steps)
    edges = [column * schedule.num_steps // columns for column in range(columns + 1)]
    # The highest rate of each column's steps: a column of a short peak still shows it.
    rates = [max(map(schedule, _some(edges[i], edges[i + 1]))) for i in range(columns)]
    top = max(rates) or 1.0
    lines = []
    for row in range(_HEIGHT, 0, -1):
        cells = "".join("█" if rate / top > (row - 0.5) / _HEIGHT else " " for rate in rates)
        label = f"{top * row / _HEIGHT:.4g}" if row % 4 == 0 else ""
        lines.append(f"{label:>10} │{cells}".rstrip())
    epochs = f"{schedule.num_steps / schedule.steps_per_epoch:g} epochs"
    return [*lines, f"{'0':>10} └{'─' * columns}", f"{'':12}0{epochs:>{max(1, columns - 1)}}"]


def _some(first: int, behind: int) -> range:
    """Not every step of a long run: rates change slowly."""
    return range(first, behind, max(1, (behind - first) // 16))


def _row(step: str, epoch: str, rate: str) -> str:
    return f"{step:>9}{epoch:>9}{rate:>13}"
