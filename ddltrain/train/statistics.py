"""What a model learns outside its parameters: its buffers, such as the running statistics of batch normalization.

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
    """The buffers of a model as one flat vector: float64, which holds every value of the usual dtypes exactly."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model  # not its buffers: a model may put new tensors in their place

    def get(self) -> torch.Tensor:
        """This rank's values: float64 [count] on the CPU."""
        parts = [buffer.detach().flatten().double().cpu() for buffer in self._model.buffers()]
        return torch.cat(parts or [torch.zeros(0, dtype=torch.float64)])

    def set(self, values: torch.Tensor) -> None:
        """Put `values`, float64 [count], into the model."""
        buffers = list(self._model.buffers())
        parts = torch.split(values, [buffer.numel() for buffer in buffers])
        with torch.no_grad():
            for buffer, part in zip(buffers, parts, strict=True):
                buffer.copy_(part.view_as(buffer))

    def gather(self, engine: Engine) -> torch.Tensor:
        """All ranks' values: float64 [world_size, count]. Collective."""
        own = self.get()
        table = torch.zeros(engine.world_size, len(own), dtype=torch.float64)
        table[engine.rank] = own
        engine.allreduce_(table)
        return table

    @contextmanager
    def averaged(self, engine: Engine) -> Iterator[torch.Tensor]:
        """Within the block the model has the ranks' average (of whole numbers, rank 0's); after it, its own again. Collective.

        Yields:
            What every rank has of its own: float64 [world_size, count].
        """
        table = self.gather(engine)
        if engine.world_size > 1:
            masks = [
                torch.full((buffer.numel(),), buffer.is_floating_point()) for buffer in self._model.buffers()
            ]
            is_averaged = torch.cat(masks or [torch.zeros(0, dtype=torch.bool)])
            self.set(torch.where(is_averaged, table.mean(dim=0), table[0]))
        try:
            yield table
        finally:
            self.set(table[engine.rank])
