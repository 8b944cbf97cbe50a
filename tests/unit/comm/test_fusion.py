"""Which tensors travel together, and that each gets its own back."""

import torch

from ddltrain.comm.fusion import MAX_FUSED_BYTES, Fusion, groups_of


def test_neighbours_of_a_dtype_share_a_group_until_it_is_full() -> None:
    most = MAX_FUSED_BYTES // 4
    tensors = [
        torch.zeros(most - 10),
        torch.zeros(3, dtype=torch.int64),
        torch.zeros(10),
        torch.zeros(0),
        torch.zeros(1),
        torch.zeros(most + 1),
        torch.zeros(2, 2),
        torch.zeros(5, dtype=torch.int64),
    ]
    assert groups_of(tensors) == [[0, 2], [1, 7], [4], [5], [6]]
    assert groups_of([]) == []


def test_each_tensor_gets_its_own_result_in_its_own_layout() -> None:
    sizes_bytes: list[int] = []
    seen: list[int] = []

    def allocate(size_bytes: int) -> torch.Tensor:
        sizes_bytes.append(size_bytes)
        return torch.zeros(size_bytes, dtype=torch.uint8)

    def double(tensor: torch.Tensor) -> None:
        assert tensor.is_contiguous()
        seen.append(tensor.numel())
        tensor.mul_(2)

    fusion = Fusion(allocate)
    tensors = [
        torch.arange(6.0).view(2, 3).t(),
        torch.arange(4),
        torch.tensor(7.0),
        torch.arange(10)[::3],
        torch.zeros(0),
    ]
    wanted = [2 * tensor for tensor in tensors]
    for _ in range(2):
        fusion.allreduce_(tensors, double)
        assert all(map(torch.equal, tensors, wanted))
        wanted = [2 * tensor for tensor in wanted]
    assert seen == [7, 8] * 2
    assert len(sizes_bytes) == 1  # kept
    alone = torch.arange(3.0)
    fusion.allreduce_([alone], double)
    assert torch.equal(alone, torch.tensor([0.0, 2.0, 4.0]))
    large = torch.ones(MAX_FUSED_BYTES, 2)[:, 0]
    fusion.allreduce_([large], double)
    assert large.eq(2).all()
    assert len(sizes_bytes) == 2
