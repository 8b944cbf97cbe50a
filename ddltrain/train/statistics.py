"""Running statistics of batch normalization over the ranks.

Each rank normalizes by its own batches and keeps its own running mean and variance. What is evaluated and saved uses their average
over the ranks (Akiba et al. 2017), so that the result does not depend on which rank is asked. Each rank goes on with its own values,
which a checkpoint holds too: a saved and resumed run has the same bits as an uninterrupted one.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from ddltrain.comm.engine import Engine


class RunningStatistics:
    """The floating-point buffers of a model, as one flat float32 vector on the CPU."""

    def __init__(self, model: nn.Module) -> None:
        self._buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]

    def get(self) -> torch.Tensor:
        """This rank's values: float32 [count]."""
        return torch.cat([buffer.flatten().float().cpu() for buffer in self._buffers] or [torch.zeros(0)])

    def set(self, values: torch.Tensor) -> None:
        """Put `values`, float32 [count], into the model."""
        parts = torch.split(values, [buffer.numel() for buffer in self._buffers])
        for buffer, part in zip(self._buffers, parts, strict=True):
            buffer.copy_(part.view_as(buffer))

    def gather(self, engine: Engine) -> torch.Tensor:
        """All ranks' values: float32 [world_size, count]. Collective."""
        own = self.get()
        table = torch.zeros(engine.world_size, len(own))
        table[engine.rank] = own
        return engine.allreduce_(table)

    @contextmanager
    def averaged(self, engine: Engine) -> Iterator[torch.Tensor]:
        """Within the block the model has the ranks' average; after it, its own values again. Collective.

        Yields:
            What every rank has of its own: float32 [world_size, count].
        """
        table = self.gather(engine)
        if engine.world_size > 1:
            self.set(table.double().mean(dim=0).float())
        try:
            yield table
        finally:
            self.set(table[engine.rank])
