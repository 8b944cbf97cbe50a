"""The learning rate as a pure function of the step, so that a resumed run needs no state to go on alike.

With S steps an epoch, W = round(warmup_epochs * S) steps of warm-up, T = epochs * S steps in all (the warm-up
is part of them), peak rate P, and p = (step - W) / (T - W), which grows from 0 to 1 over the rest:

    warm-up, step < W   P * (warmup_start + (1 - warmup_start) * step / W)
    step                P * gamma^k, k = number of milestones m with step >= round(m * S)
    cosine              P * (final + (1 - final) * (1 + cos(pi * p)) / 2)
    polynomial          P * (final + (1 - final) * (1 - p)^power)

Step W is the first with the full rate. The last step is T - 1 and still moves the weights where `final` is 0;
from T on the rate stays at what T gives. Milestones count in epochs from the start of the run.
"""

import math
from dataclasses import dataclass

from ddltrain.recipe import ScheduleRecipe


@dataclass(frozen=True)
class Schedule:
    """Call it with a step (0-based count of optimizer updates) to get the rate of that update."""

    recipe: ScheduleRecipe
    peak_lr: float
    num_steps: int
    steps_per_epoch: int

    @property
    def num_warmup_steps(self) -> int:
        """The first step with the full rate."""
        return round(self.recipe.warmup_epochs * self.steps_per_epoch)

    def __call__(self, step: int) -> float:
        """The learning rate of one step, 0 or later; beyond the last step it does not change any more."""
        if step < self.num_warmup_steps:
            start = self.recipe.warmup_start
            return self.peak_lr * (start + (1 - start) * step / self.num_warmup_steps)
        return self.peak_lr * self._decay(min(step, self.num_steps))

    def _decay(self, step: int) -> float:
        """The fraction of the peak rate after the warm-up."""
        recipe = self.recipe
        if recipe.kind == "step":
            passed = [m for m in recipe.milestones if step >= round(m * self.steps_per_epoch)]
            return float(recipe.gamma ** len(passed))
        num_decay_steps = self.num_steps - self.num_warmup_steps
        progress = (step - self.num_warmup_steps) / num_decay_steps if num_decay_steps > 0 else 1.0
        if recipe.kind == "cosine":
            shape = (1 + math.cos(math.pi * progress)) / 2
        else:
            shape = (1 - progress) ** recipe.power
        return float(recipe.final + (1 - recipe.final) * shape)


def make_schedule(recipe: ScheduleRecipe, peak_lr: float, epochs: int, steps_per_epoch: int) -> Schedule:
    """Build the schedule of a run.

    Args:
        recipe: The section `schedule`; its warm-up is no longer than the run.
        peak_lr: The rate at the end of the warm-up.
        epochs: Epochs in all, at least 1.
        steps_per_epoch: Optimizer updates an epoch, at least 1.
    """
    return Schedule(recipe, peak_lr, epochs * steps_per_epoch, steps_per_epoch)
