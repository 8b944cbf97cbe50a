"""The training loop: synchronous and data-parallel, all ranks alike.

    for each step:  forward > backward > all-reduce of the gradients > optimizer, on every rank
    for each epoch: evaluate > log > save

Everything that a step needs follows from its number: the learning rate, the records and their crops. So a checkpoint holds tensors, the
step and the sums of the epoch so far, and a run that goes on in mid-epoch has the bits of one that was never stopped.
"""

import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

import ddltrain
from ddltrain.comm.engine import Engine
from ddltrain.errors import CheckpointError, DivergedError
from ddltrain.input.loader import Batch, Decoder, train_plan
from ddltrain.input.order import StepPlan
from ddltrain.input.store import Dataset
from ddltrain.optim import make_optimizer, make_schedule, set_learning_rate
from ddltrain.recipe import Recipe
from ddltrain.train.checkpoint import parse_checkpoint
from ddltrain.train.evaluate import Evaluation, evaluate
from ddltrain.train.inputs import Normalizer
from ddltrain.train.monitor import Monitor
from ddltrain.train.position import Position
from ddltrain.train.setup import make_buckets
from ddltrain.train.statistics import RunningStatistics

# What rides along with the gradients: summed loss, right answers, and how many ranks were told to stop.
EXTRAS = ("loss_sum", "correct", "stops")


class Trainer:
    """One rank's part of a run."""

    def __init__(
        self,
        recipe: Recipe,
        model: torch.nn.Module,
        dataset: Dataset,
        decoders: dict[str, Decoder],
        engine: Engine,
        device: torch.device,
    ) -> None:
        """Collective: takes rank 0's parameters on all ranks.

        Args:
            decoders: of the splits "train" and "val".
        """
        self._recipe = recipe
        self._engine = engine
        self._dataset = dataset
        self._decoders = decoders
        train, num_records = recipe.train, len(dataset.splits["train"])
        self._steps = StepPlan(num_records, engine.world_size, train.batch_per_rank, recipe.data.last_batch)
        layout = torch.channels_last if train.channels_last else torch.contiguous_format
        self._model = model.to(device, memory_format=layout)  # type: ignore[call-overload]
        for tensor in (*self._model.parameters(), *self._model.buffers()):
            engine.broadcast_(tensor)
        self._normalize = Normalizer(recipe.data, device, train.channels_last)
        self.buckets = make_buckets(recipe, self._model, engine, len(EXTRAS))
        self._statistics = RunningStatistics(self._model)
        self._optimizer = make_optimizer(self._model, recipe.optim)
        peak_lr = recipe.optim.lr_base * self._steps.global_batch / recipe.optim.lr_base_batch
        self._schedule = make_schedule(recipe.schedule, peak_lr, train.epochs, self._steps.num_steps)
        self.position = Position()

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
            with self._statistics.averaged(self._engine):
                evaluation = evaluate(
                    self._model,
                    self._decoders["val"],
                    self._dataset.splits["val"].labels,
                    self._normalize,
                    self._engine,
                    self._recipe.train.precision,
                    self._should_stop,
                )
            if evaluation is None:  # stopped in the evaluation, which the run repeats when it goes on
                self._save()
                return None
            if not np.isfinite(evaluation.loss):
                self._refuse_to_diverge(evaluation.loss, self._schedule(position.step - 1))
            self._end_epoch(evaluation)
        return evaluation

    def _train_epoch(self) -> bool:
        """Train from where the run stands to the end of the epoch; False if it was stopped before that."""
        position, recipe = self.position, self._recipe
        self._model.train()
        self._monitor.start_epoch(position.epoch, self._steps.num_steps, position.step_in_epoch)
        seed = recipe.train.seed
        plan = train_plan(self._steps, self._engine.rank, seed, position.epoch, position.step_in_epoch)
        batches = self._decoders["train"].batches(plan, seed, position.epoch)
        for _ in range(position.step_in_epoch, self._steps.num_steps):
            start_s = time.perf_counter()
            batch = next(batches)
            data_wait_s = time.perf_counter() - start_s
            lr = self._schedule(position.step)
            loss_sum, correct, stops = self._train_step(batch, lr)
            step_s = time.perf_counter() - start_s
            position.step += 1
            position.step_in_epoch += 1
            position.loss_sum += loss_sum
            position.correct += int(correct)
            position.num_images += batch.step_images
            position.epoch_s += step_s
            position.comm_s += self.buckets.comm_s
            position.comm_exposed_s += self.buckets.exposed_s
            loss = loss_sum / batch.step_images
            self._monitor.step(
                position, loss, 100 * correct / batch.step_images, batch.step_images, lr, data_wait_s, step_s
            )
            if not np.isfinite(loss):
                self._refuse_to_diverge(loss, lr)
            if stops:
                batches.close()
                return False
            every = recipe.checkpoint.every_steps
            if every and position.step % every == 0 and position.step_in_epoch < self._steps.num_steps:
                self._save()
                self._model.train()
        return True

    def _train_step(self, batch: Batch, lr: float) -> tuple[float, float, float]:
        """One update of the parameters. Returns `EXTRAS`, summed over the ranks."""
        recipe = self._recipe.train
        torch.manual_seed(
            step_seed(recipe.seed, self.position.step, self._engine.rank)
        )  # for dropout and its like
        self.buckets.zero_()
        extras = self.buckets.extras
        if len(batch.labels):  # a step of fewer images than ranks leaves some without
            extras[0], extras[1] = self._backward(batch)
        extras[2] = float(self._should_stop())
        self.buckets.allreduce_()
        set_learning_rate(self._optimizer, lr)
        self._optimizer.step()
        loss, correct, stops = extras.tolist()
        return loss, correct, stops

    def _backward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Add this rank's part of the gradients. Returns its summed loss and its number of right answers."""
        recipe = self._recipe.train
        images = self._normalize(batch.images)
        labels = batch.labels.to(images.device, non_blocking=True)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=recipe.precision == "bf16"):
            scores = self._model(images)
        scores = scores.float()
        loss_sum = F.cross_entropy(scores, labels, reduction="sum", label_smoothing=recipe.label_smoothing)
        # The sum over ranks of these is the mean over the global batch, however unequal the ranks' shares are.
        (loss_sum / batch.step_images).backward()  # type: ignore[no-untyped-call]
        return loss_sum.detach(), (scores.detach().argmax(dim=1) == labels).sum()

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
        with self._statistics.averaged(self._engine) as per_rank:
            if self._engine.rank == 0:
                state = {
                    "model": self._model.state_dict(),
                    "optimizer": self._optimizer.state_dict(),
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

    def restore(self, data: bytes, name: str) -> None:
        """Take up the state of a checkpoint, the same bytes on all ranks.

        On another number of ranks each starts from the averaged running statistics.

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
                f"{name} was made with a global batch of {state['global_batch']} on {state['world_size']} ranks; "
                f"{self._engine.world_size} ranks x train.batch_per_rank {self._recipe.train.batch_per_rank} make "
                f"{self._steps.global_batch}: {_same_batch(state['global_batch'], self._engine.world_size)}"
            )
        try:
            self._model.load_state_dict(state["model"])
            self._optimizer.load_state_dict(state["optimizer"])
            if state["world_size"] == self._engine.world_size:
                self._statistics.set(state["statistics"][self._engine.rank])
            self.position = Position(**state["position"])
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{name} does not fit this recipe's model or this version: {error}"
            ) from None


def _same_batch(global_batch: int, world_size: int) -> str:
    if global_batch % world_size:
        return f"start a number of ranks that divides {global_batch}"
    return f"set train.batch_per_rank={global_batch // world_size}"


def step_seed(seed: int, step: int, rank: int) -> int:
    """The seed of torch's random numbers in one step on one rank."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0])
