"""One update of the parameters, the same on every rank:

for each part of the rank's share:  augment > forward > backward into the buckets
all-reduce > unscale > clip > optimizer > average of the weights
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from ddltrain.comm.engine import Engine
from ddltrain.input.loader import Batch
from ddltrain.optim import Schedule, make_optimizer, set_learning_rate
from ddltrain.recipe import Recipe
from ddltrain.train.augment import Augment
from ddltrain.train.average import WeightAverage
from ddltrain.train.finite import FiniteCheck
from ddltrain.train.inputs import Normalizer
from ddltrain.train.precision import autocast, make_scaler
from ddltrain.train.setup import make_buckets
from ddltrain.train.timeline import WAIT, Spans, no_spans

# What rides along with the gradients: summed loss, right answers, and how many ranks were told to stop.
EXTRAS = ("loss_sum", "correct", "stops")


class Step:
    """What a step needs and changes.

    Attributes:
        buckets: the gradients.
        average: of the weights, where the recipe asks for one.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: nn.Module,
        normalize: Normalizer,
        schedule: Schedule,
        engine: Engine,
        device: torch.device,
        spans: Spans = no_spans,
    ) -> None:
        """Collective.

        Args:
            model: on the device, equal on all ranks.
        """
        self._recipe, self._engine, self._device, self._spans = recipe, engine, device, spans
        self._model = model
        self._forward: Callable[[torch.Tensor], torch.Tensor] = (
            torch.compile(model) if recipe.train.compile else model
        )
        self.average = WeightAverage(model, recipe.train.ema) if recipe.train.ema else None
        self.buckets = make_buckets(recipe, model, engine, len(EXTRAS))
        self._loss_sum, self._correct, self._stops = self.buckets.extras.unbind()
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._in_buckets = [parameter.grad for parameter in self._parameters]
        self._schedule = schedule
        self._optimizer = make_optimizer(model, recipe.optim, schedule.rmsprop_lr)
        self._scaler = make_scaler(recipe.train.precision, device)
        self._augment = Augment(recipe, engine.rank, normalize)
        self._finite = FiniteCheck(model, engine, recipe.train.not_finite)
        # Batch normalization over several ranks waits for all of them, also for one without images.
        self._always_runs = recipe.bn.group > 1

    def __call__(
        self,
        batch: Batch,
        part_sizes: list[int],
        epoch: int,
        step: int,
        is_told_to_stop: bool,
        say: Callable[[Iterable[str]], None] = lambda _: None,
    ) -> tuple[float, float, float]:
        """Update the parameters, unless loss or gradients are not finite. Collective.

        Args:
            batch: this rank's share of the step; it may be empty.
            part_sizes: how it is cut into parts, whose gradients accumulate.
            step: of the run, 0 or later.
            say: told of a step that is skipped.

        Returns:
            Summed loss, right answers and ranks that were told to stop, over all ranks. The loss of a step that was skipped is no number.

        Raises:
            DivergedError: loss or gradients are not finite, and the recipe says to stop then; the same on all ranks.
        """
        self._finite.before_step()
        self._all_parts(batch, part_sizes, epoch, step)
        self._fill_in_gradients()
        self._stops.fill_(is_told_to_stop)
        with self._spans(WAIT):
            self.buckets.allreduce_()
        loss, correct, stops = self.buckets.extras.tolist()
        if not self._finite.holds(self._sums()):
            lr = self._schedule(step)
            what = self._finite.undo(
                step, lr, lambda: self._all_parts(batch, part_sizes, epoch, step, sends=False)
            )
            self.buckets.drop_residuals()
            say([f"WARNING: {what}; the step is skipped"])
            return float("nan"), 0.0, stops
        with self._spans("optimizer"):
            self._update(step)
        return loss, correct, stops

    def _sums(self) -> list[torch.Tensor]:
        """What must be finite for an update. Gradients in fp16 may overflow: the loss scaler finds that, and lowers its scale."""
        if self._scaler.is_enabled():
            return [self.buckets.extras]
        if self._engine.world_size > 1:
            return self.buckets.flat
        return [self.buckets.extras, *(p.grad for p in self._parameters if p.grad is not None)]

    def _all_parts(
        self, batch: Batch, part_sizes: list[int], epoch: int, step: int, sends: bool = True
    ) -> None:
        """Compute the gradients of this rank's share of a step, its summed loss and its number of right answers.

        With `sends`, full buckets begin to travel during the last part's backward.
        """
        self._clear_gradients()
        self._seed_torch(step_seed(self._recipe.train.seed, step, self._engine.rank))
        first = 0
        for part, size in enumerate(part_sizes):
            if size or self._always_runs:
                self.buckets.holds_back = not sends or part < len(part_sizes) - 1
                self._backward(batch, slice(first, first + size), epoch, step, part)
            first += size

    def _seed_torch(self, seed: int) -> None:
        """For dropout and its like. As `torch.manual_seed`, which also goes through all kinds of devices that are not there."""
        torch.default_generator.manual_seed(seed)
        if self._device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _clear_gradients(self) -> None:
        """One rank sends nothing: backward hands over tensors of its own, which spares clearing the buckets and adding into them."""
        if self._engine.world_size > 1:
            self.buckets.zero_()
            return
        self.buckets.extras.zero_()
        for parameter in self._parameters:
            parameter.grad = None

    def _fill_in_gradients(self) -> None:
        """A parameter that had no part in the step has a gradient of zero, on one rank as on many."""
        for parameter, zero in zip(self._parameters, self._in_buckets, strict=True):
            if parameter.grad is None:
                parameter.grad = zero

    def _backward(self, batch: Batch, own: slice, epoch: int, step: int, part: int) -> None:
        """Add up the gradients, the loss and the right answers of a part of the share."""
        recipe = self._recipe.train
        with self._spans("forward"):
            images, targets = self._augment(
                batch.images[own], batch.labels[own], batch.records[own], epoch, step, part
            )
            with autocast(recipe.precision, self._device):
                scores = self._forward(images)
            scores = scores.float()
            loss_sum = targets.loss_sum(scores, recipe.label_smoothing)
        with self._spans("backward"):
            # The sum over ranks of these is the mean over the global batch, however unequal the ranks' shares are.
            self._scaler.scale(loss_sum / batch.step_images).backward()  # type: ignore[no-untyped-call]
        self._loss_sum.add_(loss_sum.detach())
        self._correct.add_(targets.num_correct(scores.detach()))

    def _update(self, step: int) -> None:
        set_learning_rate(self._optimizer, self._schedule(step), self._schedule.rmsprop_share(step))
        self._scaler.unscale_(self._optimizer)
        if clip_norm := self._recipe.optim.clip_norm:  # of the summed gradients: the same on all ranks
            nn.utils.clip_grad_norm_(self._parameters, clip_norm, foreach=True)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        if self.average is not None:
            self.average.update()

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it, besides the model."""
        return {"optimizer": self._optimizer.state_dict(), "scaler": self._scaler.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `state` gave. Raises what torch raises where it does not fit."""
        self._optimizer.load_state_dict(state["optimizer"])
        if self._scaler.is_enabled():
            self._scaler.load_state_dict(state["scaler"])


def step_seed(seed: int, step: int, rank: int) -> int:
    """The seed of torch's random numbers in one step on one rank."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0])
