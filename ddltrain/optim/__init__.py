"""Optimizers and learning-rate schedules."""

from ddltrain.optim.schedule import Schedule, make_schedule
from ddltrain.optim.sgd import make_optimizer, set_learning_rate

__all__ = ["Schedule", "make_optimizer", "make_schedule", "set_learning_rate"]
