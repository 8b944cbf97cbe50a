"""What rank 0 does beside training: shows progress, writes the log, saves checkpoints. Other ranks have a `Monitor` that does nothing."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ddltrain.input.sharded import ExchangeTimes
from ddltrain.train.checkpoint import save_checkpoint
from ddltrain.train.evaluate import Evaluation
from ddltrain.train.log import MetricsLog
from ddltrain.train.position import Position
from ddltrain.train.progress import Progress
from ddltrain.train.timeline import Breakdown


class Monitor:
    """Watches a run; this one, of the ranks other than 0, looks away.

    Attributes:
        failed_save: why the last checkpoint could not be written; None when it was.
    """

    failed_save: str | None = None

    def say(self, lines: Iterable[str]) -> None:
        """Tell the user."""

    def loading(self, done_bytes: int, total_bytes: int, elapsed_s: float) -> None:
        """So much of this host's images is in memory."""

    def exchanged(self, times: ExchangeTimes) -> None:
        """Ranks have exchanged their records for an epoch."""

    def start_epoch(self, epoch: int, num_steps: int, first_step: int) -> None:
        """An epoch begins, or goes on at `first_step`."""

    def step(
        self,
        position: Position,
        loss: float,
        top1: float,
        num_images: int,
        lr: float,
        data_wait_s: float,
        step_s: float,
    ) -> None:
        """A step is done: mean loss and accuracy in percent over its `num_images` images, on all ranks."""

    def end_epoch(self, position: Position, lr: float, evaluation: Evaluation) -> None:
        """An epoch is done and evaluated."""

    def evaluated_average(self, position: Position, evaluation: Evaluation) -> None:
        """The average of the weights is evaluated, right before the epoch ends."""

    def save(self, state: dict[str, Any], position: Position) -> None:
        """The state of the run is to be kept."""

    def took(self, position: Position, breakdown: Breakdown) -> None:
        """The run is over, and this is where its time went."""

    def close(self) -> None:
        """Leave the screen and the log in order; a second call does nothing."""


class Rank0Monitor(Monitor):
    """Writes to the screen and into the run folder."""

    def __init__(
        self,
        checkpoints: Path,
        progress: Progress,
        log: MetricsLog,
        every_steps: int,
        keep: int,
        write_report: Callable[[Evaluation], None],
    ) -> None:
        self._checkpoints = checkpoints
        self._progress = progress
        self._log = log
        self._every_steps = every_steps
        self._keep = keep
        self._write_report = write_report
        self._num_steps = 1
        self._last_step = 0
        self._evaluation: Evaluation | None = None
        self._clear()

    def _clear(self) -> None:
        self._loss_sum = self._correct = self._data_wait_s = self._time_s = 0.0
        self._num_images = self._num_rows = 0

    def loading(self, done_bytes: int, total_bytes: int, elapsed_s: float) -> None:
        self._progress.loading(done_bytes, total_bytes, elapsed_s)

    def exchanged(self, times: ExchangeTimes) -> None:
        self._progress.message(
            f"exchange for epoch {times.epoch + 1}: {times.busy_s:.2f} s, of which training waited {times.waited_s:.2f} s "
            f"({100 * times.hidden:.0f} % hidden)"
        )
        row = {"step": self._last_step, "epoch": times.epoch}
        self._log.write({"kind": "exchange", **row, "exchange_s": times.busy_s, "waited_s": times.waited_s})

    def start_epoch(self, epoch: int, num_steps: int, first_step: int) -> None:
        self._num_steps = num_steps
        self._progress.start_epoch(epoch, num_steps, first_step)

    def step(
        self,
        position: Position,
        loss: float,
        top1: float,
        num_images: int,
        lr: float,
        data_wait_s: float,
        step_s: float,
    ) -> None:
        self._last_step = position.step
        self._loss_sum += loss * num_images
        self._correct += top1 * num_images
        self._num_images += num_images
        self._num_rows += 1
        self._data_wait_s += data_wait_s
        self._time_s += step_s
        mean_loss, mean_top1 = self._loss_sum / self._num_images, self._correct / self._num_images
        images_per_s = self._num_images / self._time_s
        self._progress.update(position.step_in_epoch, mean_loss, mean_top1, lr, images_per_s)
        if position.step % self._every_steps == 0 or position.step_in_epoch == self._num_steps:
            self._log.write(
                {
                    "kind": "train",
                    "step": position.step,
                    "epoch": position.epoch + position.step_in_epoch / self._num_steps,
                    "loss": mean_loss,
                    "top1": mean_top1,
                    "lr": lr,
                    "images_per_s": images_per_s,
                    "data_wait_s": self._data_wait_s / self._num_rows,
                }
            )
            self._clear()

    def end_epoch(self, position: Position, lr: float, evaluation: Evaluation) -> None:
        loss, top1 = position.loss_sum / position.num_images, 100 * position.correct / position.num_images
        images_per_s = position.num_images / position.epoch_s
        row = {"step": position.step, "epoch": position.epoch}
        epoch = {
            "loss": loss,
            "top1": top1,
            "lr": lr,
            "images_per_s": images_per_s,
            "time_s": position.epoch_s,
            "comm_s": position.comm_s,
            "comm_exposed_s": position.comm_exposed_s,
        }
        self._log.write({"kind": "epoch", **row, **epoch})
        self._log.write({"kind": "eval", **row, **evaluation.figures()})
        self._progress.end_epoch(loss, top1, images_per_s, evaluation)
        self._evaluation = evaluation
        self._report(evaluation)

    def _report(self, evaluation: Evaluation) -> None:
        try:
            self._write_report(evaluation)
        except OSError as error:
            self._progress.message(f"WARNING: cannot write the report: {error}; training goes on")

    def evaluated_average(self, position: Position, evaluation: Evaluation) -> None:
        self._log.write(
            {"kind": "ema", "step": position.step, "epoch": position.epoch + 1, **evaluation.figures()}
        )
        self._progress.message(
            f"epoch {position.epoch + 1}: average of the weights, top-1 {evaluation.top1:.2f} %, loss {evaluation.loss:.4f}"
        )

    def took(self, position: Position, breakdown: Breakdown) -> None:
        self._log.write(
            {
                "kind": "timeline",
                "step": position.step,
                "total_s": breakdown.total_s,
                "spans_s": breakdown.spans_s,
                "comm_s": breakdown.comm_s,
                "comm_exposed_s": breakdown.comm_exposed_s,
            }
        )
        if self._evaluation is not None:
            self._report(self._evaluation)

    def save(self, state: dict[str, Any], position: Position) -> None:
        best_step = position.best_step if position.best_step >= 0 else None
        try:
            save_checkpoint(self._checkpoints, state, position.step, self._keep, best_step)
            self.failed_save = None
        except OSError as error:
            self.failed_save = f"cannot write the checkpoint of step {position.step} into {self._checkpoints}: {error.strerror}"
            self._progress.message(f"WARNING: {self.failed_save}; older ones are kept, and training goes on")

    def say(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._progress.message(line)

    def close(self) -> None:
        self._progress.close()
        self._log.close()
