"""Gradients in flat buckets, the unit that is handed to an all-reduce, which begins while backward still computes others.

    parameters in reverse order (about the order in which backward finishes them)
    [ fc.bias fc.weight layer4... ][ ...layer2... ][ ...conv1.weight | extras ]
      bucket 0                       bucket 1        bucket 2

    backward  ████████████████████████████████████
    bucket 0           └─ all-reduce ─┐                  a hook on each parameter counts its bucket down
    bucket 1                     └─ all-reduce ─┐
    bucket 2                                    └─ all-reduce ─┐
                                              wait: exposed ◄──►

Every parameter's `.grad` is a view of its bucket, so backward writes where the all-reduce reads, and nothing is copied. The last
bucket ends in a few extra numbers (the step's loss, counts and the stop flag), which so cost no message of their own. Where gradients
travel in 16 bits, the extras are a bucket of their own that does not.

All ranks must start their all-reduces in one order, whatever they compute: that of the buckets in the first step, and from then on the
one in which rank 0 filled them there. A bucket that is full early waits for its predecessors. What is not full when backward ends (unused
parameters, a rank without images) is sent then, as it is. Which elements share a bucket never changes, nor do results depend on the order.
"""

import time
from collections.abc import Callable

import torch
from torch import nn

from ddltrain.comm.engine import Engine
from ddltrain.comm.handle import Handle
from ddltrain.comm.local_sums import LocalSums
from ddltrain.comm.way import Way

BUCKET = "bucket "  # the names of their all-reduces begin so


class Buckets:
    """Owns the gradients of a model and sums them over ranks.

    Attributes:
        flat: the buckets, float32.
        wires: the 16-bit format in which each is sent, or None.
        holds_back: while true, backward only adds gradients up, since more are to come in this step.
        extras: float32 [num_extras], summed along with the gradients; sums of counts are exact up to 2^24.
        comm_s: the time in the newest step, in seconds, with an all-reduce under way on this rank.
        exposed_s: the part of it behind backward, in `allreduce_`.
        is_local: whether ranks of a host sum by torch.distributed.
    """

    def __init__(
        self,
        model: nn.Module,
        engine: Engine,
        bucket_bytes: int,
        num_extras: int,
        wire: str | None = None,
        local: LocalSums | None = None,
        error_feedback: bool = False,
    ) -> None:
        """Collective: on the CPU the buckets lie in memory that the ranks of a host share.

        Args:
            wire: "bf16" or "fp16" sends gradients in 16 bits between hosts.
            local: what sums them instead of the engine alone.
            error_feedback: what `wire` rounds away in a step is added in the next one.
        """
        groups = _group(
            [parameter for parameter in model.parameters() if parameter.requires_grad], bucket_bytes
        )
        counts = [sum(parameter.numel() for parameter in group) for group in groups]
        self.wires = [wire] * len(groups)
        if wire:
            groups.append([])
            counts.append(0)
            self.wires.append(None)
        device = groups[0][0].device if groups[0] else torch.device("cpu")
        sizes = [*counts[:-1], counts[-1] + num_extras]
        self.is_local = local is not None
        may_round = len(engine.topology.hosts) > 1 or not engine.has_windows
        keeps = [error_feedback and may_round and own is not None for own in self.wires]
        self._local, self._memories = local, []
        if local is not None:
            self._memories = [local.memory(*own) for own in zip(sizes, keeps, strict=True)]
            self.flat = [memory.whole[:size] for memory, size in zip(self._memories, sizes, strict=True)]
            self._residuals = [memory.residual for memory in self._memories]
        else:
            self.flat = [_zeros(size, device, engine) for size in sizes]
            self._residuals = [
                torch.zeros(own[0]) if own[1] else None for own in zip(sizes, keeps, strict=True)
            ]
        self.extras = self.flat[-1][counts[-1] :]
        self.comm_s = self.exposed_s = 0.0
        self._engine = engine
        self.num_parameters = [len(group) for group in groups]
        self._order = list(range(len(groups)))
        self._is_first_step = True
        self._start_step()
        for index, (bucket, group) in enumerate(zip(self.flat, groups, strict=True)):
            _point_gradients_into(bucket, group)
            if engine.world_size > 1:
                for parameter in group:
                    parameter.register_post_accumulate_grad_hook(self._counter_of(index))  # type: ignore[no-untyped-call]

    def zero_(self) -> None:
        """Set all gradients and extras to zero. To be called before each step."""
        torch._foreach_zero_(self.flat)
        self._start_step()

    def allreduce_(self) -> None:
        """Replace gradients and extras by their sums over all ranks; to be called after backward. Collective."""
        start_s = time.perf_counter()
        self._submit(len(self.flat))
        for handle in self._handles:
            handle.wait()
        self.exposed_s = time.perf_counter() - start_s
        self.comm_s = self._busy_s() - self._busy_before_s
        if self._is_first_step:
            self._is_first_step = False
            self._agree_on_order()

    def drop_residuals(self) -> None:
        """Forget what error feedback keeps for the next step."""
        for residual in self._residuals:
            if residual is not None:
                residual.zero_()

    def overlaps(self, index: int) -> bool:
        """Whether a bucket can travel during backward."""
        return self.is_local or self._engine.overlaps(self.flat[index], self.wires[index])

    def way(self, index: int) -> Way:
        """How a bucket is summed."""
        if self._local is not None:
            return self._local.way(self._memories[index], self.wires[index])
        return self._engine.way_of(self.flat[index], self.wires[index])

    def _busy_s(self) -> float:
        return self._local.busy_s if self._local is not None else self._engine.busy_s

    def _start_step(self) -> None:
        self.holds_back = False
        self._missing = self.num_parameters.copy()
        self._filled: list[int] = []
        self._num_submitted = 0
        self._busy_before_s = self._busy_s()
        self._handles: list[Handle] = []

    def _counter_of(self, index: int) -> Callable[[torch.Tensor], None]:
        def count_down(_: torch.Tensor) -> None:
            if self.holds_back:
                return
            self._missing[index] -= 1
            if self._missing[index]:
                return
            self._filled.append(index)
            self._submit(self._num_full())

        return count_down

    def _num_full(self) -> int:
        """How many buckets can go, in order, before backward ends; never the last one, whose extras may be missing."""
        for place, index in enumerate(self._order[:-1]):
            if self._missing[index]:
                return place
        return len(self._order) - 1

    def _submit(self, end: int) -> None:
        """Start the all-reduces of the buckets up to the place `end` in the order, those that can go by themselves at once."""
        for index in self._order[self._num_submitted : end]:
            bucket, wire, name = self.flat[index], self.wires[index], f"{BUCKET}{index}"
            residual = self._residuals[index]
            if self._local is not None:
                self._handles.append(self._local.submit(self._memories[index], wire, name))
            elif self._engine.overlaps(bucket, wire):
                self._handles.append(
                    self._engine.allreduce_async(bucket, wire=wire, name=name, residual=residual)
                )
            elif end < len(self.flat):
                return
            else:
                self._engine.allreduce_(bucket, wire=wire, name=name, residual=residual)
            self._num_submitted += 1

    def _agree_on_order(self) -> None:
        """Take rank 0's order of filling, the bucket with the extras last. Collective."""
        if self._engine.world_size > 1 and len(self.flat) > 2:
            last = len(self.flat) - 1
            seen = [index for index in self._filled if index != last]
            unfilled = [index for index in range(last) if index not in seen]
            order = self._engine.broadcast_(torch.tensor([*seen, *unfilled, last]))
            self._order = order.tolist()


def _group(parameters: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """The parameters in reverse order, cut into groups of at most so many bytes, or of one parameter."""
    groups: list[list[nn.Parameter]] = [[]]
    filled_bytes = 0
    for parameter in reversed(parameters):
        size_bytes = parameter.numel() * 4
        if groups[-1] and filled_bytes + size_bytes > bucket_bytes:
            groups.append([])
            filled_bytes = 0
        groups[-1].append(parameter)
        filled_bytes += size_bytes
    return groups


def _zeros(count: int, device: torch.device, engine: Engine) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(count, device=device)
    return engine.allocate(count * 4).view(torch.float32)


def _point_gradients_into(bucket: torch.Tensor, parameters: list[nn.Parameter]) -> None:
    offset = 0
    for parameter in parameters:
        # The parameter's own strides, so that a channels_last weight gets a gradient of the same layout.
        parameter.grad = bucket.as_strided(parameter.shape, parameter.stride(), offset)
        offset += parameter.numel()
