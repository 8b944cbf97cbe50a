"""The learning rate as a pure function of the step, so that a resumed run needs no state to go on alike.

With S steps an epoch, W = round(warmup_epochs * S) steps of warm-up, T = epochs * S steps in all (the warm-up
is part of them), peak rate P, and p = (step - W) / (T - W), which grows from 0 to 1 over the rest:

    warm-up, step < W   P * (warmup_start + (1 - warmup_start) * step / W)
    step                P * gamma^k, k = number of milestones m with step >= round(m * S)
    cosine              P * (final + (1 - final) * (1 + cos(pi * p)) / 2)
    polynomial          P * (final + (1 - final) * (1 - p)^power)
    rmsprop-hybrid      P * factors[k], k as for step: a slow start (Akiba, Suzuki, Fukuda 2017)

Step W is the first with the full rate. The last step is T - 1 and still moves the weights where `final` is 0;
from T on the rate stays at what T gives. Milestones count in epochs from the start of the run.

The hybrid has no linear warm-up. Its steps begin as RMSprop's and turn into SGD's; at epoch e = step / S, with c and d for
rmsprop_center and rmsprop_period, SGD's part is

    e < c               exp(2 (e - c) / d) / 2
    e < c + d / 2       1/2 + (e - c) / d
    from there on       1

which is smooth and is 1/2 at c. RMSprop has the rest.
"""

import math
from dataclasses import dataclass

from ddltrain.recipe import ScheduleRecipe
from ddltrain.recipe_rules import SLOW_START_FACTORS, SLOW_START_MILESTONES


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

    @property
    def milestone_steps(self) -> list[int]:
        """The first step of each part of a rate that falls in steps; none where it falls smoothly."""
        recipe = self.recipe
        milestones = recipe.milestones if recipe.kind in ("step", "rmsprop-hybrid") else ()
        if recipe.kind == "rmsprop-hybrid" and not recipe.factors:
            milestones = SLOW_START_MILESTONES
        return [round(milestone * self.steps_per_epoch) for milestone in milestones]

    @property
    def rmsprop_lr(self) -> float | None:
        """The rate of RMSprop; None where it has no part."""
        return self.recipe.rmsprop_lr if self.recipe.kind == "rmsprop-hybrid" else None

    def rmsprop_share(self, step: int) -> float:
        """RMSprop's part in a step, from 0 to 1."""
        recipe = self.recipe
        if recipe.kind != "rmsprop-hybrid":
            return 0.0
        past_center = (step / self.steps_per_epoch - recipe.rmsprop_center) / recipe.rmsprop_period
        sgd = math.exp(2 * past_center) / 2 if past_center < 0 else min(1.0, 0.5 + past_center)
        return 1 - sgd

    def __call__(self, step: int) -> float:
        """The learning rate of one step, 0 or later; beyond the last step it does not change any more."""
        if step < self.num_warmup_steps:
            start = self.recipe.warmup_start
            return self.peak_lr * (start + (1 - start) * step / self.num_warmup_steps)
        return self.peak_lr * self._decay(min(step, self.num_steps))

    def _decay(self, step: int) -> float:
        """The fraction of the peak rate after the warm-up."""
        recipe = self.recipe
        num_passed = sum(step >= milestone for milestone in self.milestone_steps)
        if recipe.kind == "step":
            return float(recipe.gamma**num_passed)
        if recipe.kind == "rmsprop-hybrid":
            return (recipe.factors or SLOW_START_FACTORS)[num_passed]
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
