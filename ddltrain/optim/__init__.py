"""Optimizers and learning-rate schedules."""

from ddltrain.optim.optimizer import make_optimizer, set_learning_rate
from ddltrain.optim.schedule import Schedule, make_schedule

__all__ = ["Schedule", "make_optimizer", "make_schedule", "set_learning_rate"]
