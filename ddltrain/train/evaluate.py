"""Exact evaluation on any number of ranks: every image counts once, and none is added to fill a batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ddltrain.comm.engine import Engine
from ddltrain.input.loader import Loader
from ddltrain.train.inputs import Normalizer
from ddltrain.train.precision import autocast


@dataclass(frozen=True)
class Evaluation:
    """What a model makes of a data set.

    Attributes:
        loss: mean cross entropy, without label smoothing.
        correct1, correct5: images whose label is the best, or among the five best, of the model's guesses.
        count: images in all.
        labels, predictions: int64 [count].
        confidences: float32 [count], the probability given to the prediction.
    """

    loss: float
    correct1: int
    correct5: int
    count: int
    labels: np.ndarray
    predictions: np.ndarray
    confidences: np.ndarray

    @property
    def top1(self) -> float:
        """Accuracy in percent."""
        return 100 * self.correct1 / self.count

    @property
    def top5(self) -> float:
        """Percent of images whose label is among the five best guesses."""
        return 100 * self.correct5 / self.count

    def figures(self) -> dict[str, Any]:
        """The figures without the single images."""
        return {
            "top1": self.top1,
            "top5": self.top5,
            "correct1": self.correct1,
            "correct5": self.correct5,
            "count": self.count,
            "loss": self.loss,
        }


def evaluate(
    model: nn.Module,
    loader: Loader,
    labels: np.ndarray,
    normalize: Normalizer,
    engine: Engine,
    precision: str = "fp32",
    should_stop: Callable[[], bool] = lambda: False,
) -> Evaluation | None:
    """Evaluate on all ranks together; each has the whole result, the same to the bit.

    Collective. A rank may have nothing to evaluate. The model is left in evaluation mode.

    Args:
        model: on the device of `normalize`, equal on all ranks.
        loader: of the images to evaluate on.
        labels: int64 [count], of that data set.
        precision: "fp32", "bf16" or "fp16", in which the network runs.
        should_stop: asked after each batch; when any rank's says so, the evaluation ends without a result.
    """
    # One row a figure, one column an image: prediction, place of the label among the guesses, loss, confidence.
    # Each image's column is filled by one rank and zero on the others, so the sum over ranks is exact.
    table = torch.zeros(4, len(labels), dtype=torch.float64)
    stopped = torch.zeros(1, dtype=torch.float64)
    model.eval()
    with torch.no_grad():
        for batch in loader:
            images = normalize(batch.images)
            with autocast(precision, images.device):
                scores = model(images)
            table[:, batch.records] = _judge(scores.float(), batch.labels.to(images.device)).cpu()
            if should_stop():
                stopped += 1
                break
    if engine.allreduce_(stopped).item() > 0:
        return None
    engine.allreduce_(table)
    return Evaluation(
        loss=table[2].mean().item(),
        correct1=int((table[1] < 1).sum()),
        correct5=int((table[1] < 5).sum()),
        count=len(labels),
        labels=labels,
        predictions=table[0].long().numpy(),
        confidences=table[3].float().numpy(),
    )


def _judge(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """For float32 scores [n, classes]: float64 [4, n], see the table above. Ties go to the lower class index."""
    own = scores.gather(1, labels[:, None])
    classes = torch.arange(scores.shape[1], device=scores.device)
    # "Not lower or equal", so that a score that is not a number never counts as right.
    better = ~(scores <= own) | ((scores == own) & (classes < labels[:, None]))
    better.scatter_(1, labels[:, None], ~own.isfinite())
    confidences, predictions = scores.softmax(dim=1).max(dim=1)
    losses = F.cross_entropy(scores, labels, reduction="none")
    return torch.stack(
        [predictions.double(), better.sum(dim=1).double(), losses.double(), confidences.double()]
    )
