"""The training loop: synchronous and data-parallel, all ranks alike.

    for each step:  forward > backward > all-reduce of the gradients > optimizer, on every rank
    for each epoch: evaluate > log > save

Everything that a step needs follows from its number: the learning rate, the records and their crops. So a checkpoint holds tensors, the
step and the sums of the epoch so far, and a run that goes on in mid-epoch has the bits of one that was never stopped (with error
feedback, of one that was saved there).
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import ddltrain
from ddltrain.comm.buckets import Buckets
from ddltrain.comm.engine import Engine
from ddltrain.errors import CheckpointError, DivergedError
from ddltrain.input.loader import Loader
from ddltrain.input.store import Dataset
from ddltrain.recipe import Recipe
from ddltrain.train.checkpoint import parse_checkpoint
from ddltrain.train.evaluate import Evaluation, evaluate
from ddltrain.train.inputs import Normalizer
from ddltrain.train.monitor import Monitor
from ddltrain.train.position import Position
from ddltrain.train.setup import make_steps, schedule_of
from ddltrain.train.statistics import RunningStatistics
from ddltrain.train.step import Step
from ddltrain.train.timeline import Spans, no_spans


class Trainer:
    """One rank's part of a run."""

    def __init__(
        self,
        recipe: Recipe,
        model: torch.nn.Module,
        dataset: Dataset,
        loaders: dict[str, Loader],
        engine: Engine,
        device: torch.device,
        spans: Spans = no_spans,
    ) -> None:
        """Collective: takes rank 0's parameters on all ranks.

        Args:
            loaders: of the splits "train" and "val".
            spans: keeps what is done when.
        """
        self._recipe = recipe
        self._engine = engine
        self._dataset = dataset
        self._loaders = loaders
        self._spans = spans
        self._steps = make_steps(recipe, dataset, engine.world_size)
        layout = torch.channels_last if recipe.train.channels_last else torch.contiguous_format
        self._model = model.to(device, memory_format=layout)  # type: ignore[call-overload]
        for tensor in (*self._model.parameters(), *self._model.buffers()):
            engine.broadcast_(tensor)
        self._normalize = Normalizer(recipe.data, device, recipe.train.channels_last)
        self._schedule = schedule_of(recipe, self._steps)
        self._step = Step(recipe, self._model, self._normalize, self._schedule, engine, device, spans)
        self._statistics = RunningStatistics(self._model)
        average = self._step.average
        self._average_statistics = RunningStatistics(average.model) if average else None
        self.position = Position()

    @property
    def buckets(self) -> Buckets:
        """The gradients."""
        return self._step.buckets

    def run(self, monitor: Monitor, should_stop: Callable[[], bool]) -> Evaluation | None:
        """Train to the end of the recipe, or until a rank is told to stop; either way the last state is saved.

        Collective.

        Args:
            should_stop: whether this rank was told to stop; the ranks agree at the end of a step.

        Returns:
            The last epoch's evaluation; None when the run was stopped, or was finished before.

        Raises:
            DivergedError: the loss is not finite; the last checkpoint is from before.
        """
        self._monitor, self._should_stop = monitor, should_stop
        position, evaluation = self.position, None
        while position.epoch < self._recipe.train.epochs:
            if not self._train_epoch():
                self._save()
                return None
            with self._spans("evaluation"):
                evaluation = self._evaluate(self._model, self._statistics)
            if evaluation is None:  # stopped in the evaluation, which the run repeats when it goes on
                self._save()
                return None
            if not np.isfinite(evaluation.loss):
                self._refuse_to_diverge(evaluation.loss, self._schedule(position.step - 1))
            if self._step.average is not None and self._average_statistics is not None:
                with self._spans("evaluation"):
                    of_average = self._evaluate(self._step.average.model, self._average_statistics)
                if of_average is None:
                    self._save()
                    return None
                self._monitor.evaluated_average(position, of_average)
            self._end_epoch(evaluation)
        return evaluation

    def _evaluate(self, model: torch.nn.Module, statistics: RunningStatistics) -> Evaluation | None:
        """On the validation images, with the ranks' mean statistics; None where a rank was told to stop."""
        with statistics.averaged(self._engine):
            return evaluate(
                model,
                self._loaders["val"],
                self._dataset.splits["val"].labels,
                self._normalize,
                self._engine,
                self._recipe.train.precision,
                self._should_stop,
            )

    def _train_epoch(self) -> bool:
        """Train from where the run stands to the end of the epoch; False if it was stopped before that."""
        position, recipe = self.position, self._recipe
        self._model.train()
        self._monitor.start_epoch(position.epoch, self._steps.num_steps, position.step_in_epoch)
        loader = self._loaders["train"]
        loader.load_state_dict({"epoch": position.epoch, "step": position.step_in_epoch})
        batches = iter(loader)
        for step_in_epoch in range(position.step_in_epoch, self._steps.num_steps):
            start_s = time.perf_counter()
            with self._spans("data wait"):
                batch = next(batches)
            data_wait_s = time.perf_counter() - start_s
            lr = self._schedule(position.step)
            part_sizes = self._steps.part_sizes(step_in_epoch, self._engine.rank)
            loss_sum, correct, stops = self._step(
                batch, part_sizes, position.epoch, position.step, self._should_stop(), self._monitor.say
            )
            step_s = time.perf_counter() - start_s
            position.step += 1
            position.step_in_epoch += 1
            position.epoch_s += step_s
            position.comm_s += self.buckets.comm_s
            position.comm_exposed_s += self.buckets.exposed_s
            if np.isfinite(loss_sum):  # else the step was skipped
                position.loss_sum += loss_sum
                position.correct += int(correct)
                position.num_images += batch.step_images
                loss, top1 = loss_sum / batch.step_images, 100 * correct / batch.step_images
                self._monitor.step(position, loss, top1, batch.step_images, lr, data_wait_s, step_s)
            if stops:
                batches.close()
                return False
            every = recipe.checkpoint.every_steps
            if every and position.step % every == 0 and position.step_in_epoch < self._steps.num_steps:
                self._save()
                self._model.train()
        if position.num_images == 0:  # every step was skipped
            self._refuse_to_diverge(float("nan"), self._schedule(position.step - 1))
        return True

    def _end_epoch(self, evaluation: Evaluation) -> None:
        position, recipe = self.position, self._recipe
        position.epoch += 1
        if evaluation.top1 > position.best_top1:
            position.best_top1, position.best_step = evaluation.top1, position.step
        self._monitor.end_epoch(position, self._schedule(position.step - 1), evaluation)
        position.step_in_epoch, position.loss_sum, position.correct = 0, 0.0, 0
        position.num_images, position.epoch_s = 0, 0.0
        position.comm_s, position.comm_exposed_s = 0.0, 0.0
        is_best, is_last = position.best_step == position.step, position.epoch == recipe.train.epochs
        if is_best or is_last or position.epoch % recipe.checkpoint.every_epochs == 0:
            self._save()

    def _refuse_to_diverge(self, loss: float, lr: float) -> None:
        error = DivergedError(
            f"the loss is {loss} at step {self.position.step} (learning rate {lr:.4g}); lower optim.lr_base or lengthen "
            "schedule.warmup_epochs; the last checkpoint is from before"
        )
        error.on_all_ranks = True  # the loss is the sum over the ranks
        raise error

    def _save(self) -> None:
        """Collect what a checkpoint needs, on all ranks, and write it on rank 0."""
        self.buckets.drop_residuals()  # as a run does that goes on from the checkpoint, so that both are the same to the bit
        with self._spans("checkpoint"), self._statistics.averaged(self._engine) as per_rank:
            average = self._state_of_average()
            if self._engine.rank == 0:
                state = {
                    "model": self._model.state_dict(),
                    **self._step.state(),
                    **average,
                    "statistics": per_rank,
                    "position": vars(self.position).copy(),
                    "world_size": self._engine.world_size,
                    "global_batch": self._steps.global_batch,
                    "recipe": self._recipe.to_toml(),
                    "classes": list(self._dataset.classes),
                    "fingerprint": self._dataset.fingerprint,
                    "version": ddltrain.__version__,
                }
                self._monitor.save(state, self.position)

    def _state_of_average(self) -> dict[str, Any]:
        """The average of the weights, with the ranks' mean statistics, and what each rank has. Collective."""
        if self._step.average is None or self._average_statistics is None:
            return {}
        with self._average_statistics.averaged(self._engine) as per_rank:
            model = {name: value.clone() for name, value in self._step.average.model.state_dict().items()}
            return {"ema": model, "ema_statistics": per_rank}

    def restore(self, data: bytes, name: str) -> list[str]:
        """Take up the state of a checkpoint, the same bytes on all ranks.

        On another number of ranks each starts from the averaged running statistics.

        Returns:
            What the user should know.

        Raises:
            CheckpointError: it was made with other data or another global batch, or does not fit the model.
        """
        state = parse_checkpoint(data, name)
        if state["fingerprint"] != self._dataset.fingerprint:
            raise CheckpointError(
                f"{name} was trained on other data than {self._dataset.path} holds now; give the same data set, or start a new run"
            )
        if state["global_batch"] != self._steps.global_batch:
            raise CheckpointError(
                f"{name} was made with a global batch of {state['global_batch']} on {state['world_size']} ranks, here it is "
                f"{self._steps.global_batch} on {self._engine.world_size}: set train.global_batch={state['global_batch']}"
            )
        try:
            self._model.load_state_dict(state["model"])
            self._step.restore(state)
            same_ranks = state["world_size"] == self._engine.world_size
            if same_ranks:
                self._statistics.set(state["statistics"][self._engine.rank])
            if self._step.average is not None and self._average_statistics is not None:
                self._step.average.model.load_state_dict(state["ema"])
                if same_ranks:
                    self._average_statistics.set(state["ema_statistics"][self._engine.rank])
            self.position = Position(**state["position"])
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{name} does not fit this recipe's model or this version: {error}"
            ) from None
        if same_ranks:
            return []
        return [
            f"{name} was made on {state['world_size']} ranks, this run has {self._engine.world_size}: the global batch of "
            f"{self._steps.global_batch} is the same, and so are its steps; batch normalization goes on from the ranks' mean statistics"
        ]
