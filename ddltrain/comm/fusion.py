"""Many small tensors as few large ones: a message costs about the same whether it carries one number or ten thousand."""

from collections.abc import Callable, Sequence

import torch

# Beyond this, copying costs more than a message.
MAX_FUSED_BYTES = 1 << 20


class Fusion:
    """Joins tensors in memory of its own, which it keeps for the next time."""

    def __init__(self, allocate: Callable[[int], torch.Tensor]) -> None:
        """Takes what gives zeroed bytes on the CPU; that may be collective, for all ranks ask for the same."""
        self._allocate = allocate
        self._memory = torch.empty(0, dtype=torch.uint8)

    def allreduce_(
        self, tensors: Sequence[torch.Tensor], allreduce_: Callable[[torch.Tensor], object]
    ) -> None:
        """Apply `allreduce_`, which takes a contiguous tensor, to all of `tensors`, small neighbours of a dtype together."""
        for group in groups_of(tensors):
            own = [tensors[index] for index in group]
            if len(own) == 1 and own[0].is_contiguous():
                allreduce_(own[0])
                continue
            flat = self._room_for(own)
            sizes = [tensor.numel() for tensor in own]
            parts = [
                part.view(tensor.shape) for part, tensor in zip(torch.split(flat, sizes), own, strict=True)
            ]
            torch._foreach_copy_(parts, own)
            allreduce_(flat)
            torch._foreach_copy_(own, parts)

    def _room_for(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        size_bytes, first = sum(tensor.nbytes for tensor in tensors), tensors[0]
        if not first.is_cpu:
            return torch.empty(size_bytes, dtype=torch.uint8, device=first.device).view(first.dtype)
        if len(self._memory) < size_bytes:
            self._memory = self._allocate(max(size_bytes, MAX_FUSED_BYTES))
        return self._memory[:size_bytes].view(first.dtype)


def groups_of(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """Groups of indices into `tensors`: of one dtype and device, each of at most `MAX_FUSED_BYTES`.

    A tensor beyond that is a group of its own; tensors without elements are in none. Groups only depend on sizes, dtypes and order, so that
    all ranks make the same.
    """
    groups: list[list[int]] = []
    newest: dict[tuple[torch.dtype, torch.device], tuple[list[int], int]] = {}
    for index, tensor in enumerate(tensors):
        if not tensor.numel():
            continue
        kind = (tensor.dtype, tensor.device)
        group, filled_bytes = newest.get(kind, ([], MAX_FUSED_BYTES))
        if filled_bytes + tensor.nbytes > MAX_FUSED_BYTES:
            group, filled_bytes = [], 0
            groups.append(group)
        group.append(index)
        newest[kind] = (group, filled_bytes + tensor.nbytes)
    return groups
