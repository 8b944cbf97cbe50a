"""Batch normalization over a group of ranks against one BatchNorm2d that sees all images; ranks are threads here."""

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from ddltrain.errors import RecipeError
from ddltrain.nets import build_model
from ddltrain.train.batchnorm import GroupBatchNorm2d, check_group, normalize_over


class ThreadGroup:
    """Sums over threads; every thread must come."""

    def __init__(self, size: int) -> None:
        self._parts: list[Tensor] = []
        self._lock = threading.Lock()
        self._barrier = threading.Barrier(size, timeout=20)
        self.num_sums = 0

    def __call__(self, values: Tensor) -> Tensor:
        assert values.dtype == torch.float32
        with self._lock:
            self._parts.append(values)
        self._barrier.wait()
        total = torch.stack(sorted(self._parts, key=id)).double().sum(0).float()
        if self._barrier.wait() == 0:
            self._parts = []
            self.num_sums += 1
        self._barrier.wait()
        return total

    def __deepcopy__(self, _: object) -> "ThreadGroup":
        return self


def on_ranks(num_ranks: int, work: Callable[[int], Tensor]) -> list[Tensor]:
    with ThreadPoolExecutor(num_ranks) as pool:
        return list(pool.map(work, range(num_ranks)))


def check_same(sizes: list[int], dtype: torch.dtype = torch.float32, scale: float = 1.0) -> None:
    """Images cut to ranks by `sizes` against one batch of all, over two steps in training and one in evaluation."""
    generator = torch.Generator().manual_seed(7)
    images = torch.randn(sum(sizes), 6, 3, 4, generator=generator) * torch.linspace(0.5, 3, 6).view(6, 1, 1)
    images = (images + scale * torch.linspace(-2, 3, 6).view(6, 1, 1)).to(dtype)
    wanted = torch.randn(images.shape, generator=generator).to(dtype)
    whole = nn.BatchNorm2d(6)
    with torch.no_grad():
        whole.weight.uniform_(0.5, 2, generator=generator)
        whole.bias.normal_(generator=generator)
    group = ThreadGroup(len(sizes))
    layers = [normalize_over(copy.deepcopy(whole), group) for _ in sizes]
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.02, "atol": 0.02}
    for _ in range(2):
        whole.zero_grad()
        x = images.float().clone().requires_grad_()
        expected = whole(x)
        (expected * wanted.float()).sum().backward()

        def step(rank: int) -> Tensor:
            layers[rank].zero_grad()
            own = images.split(sizes)[rank].to(memory_format=torch.channels_last).requires_grad_()
            output = layers[rank](own)
            assert output.dtype == dtype
            (output * wanted.split(sizes)[rank]).sum().backward()
            assert own.grad is not None
            return torch.stack([output.detach(), own.grad])

        outputs, gradients = torch.cat(on_ranks(len(sizes), step), dim=1).float()
        torch.testing.assert_close(outputs, expected.detach(), **tolerance)
        torch.testing.assert_close(gradients, x.grad, **tolerance)
        for name in ("weight", "bias"):  # each rank has its part
            total = sum(getattr(layer, name).grad for layer in layers)
            torch.testing.assert_close(total, getattr(whole, name).grad, rtol=1e-3, atol=1e-3)
    for layer in layers:
        for name, buffer in layer.named_buffers():
            assert torch.equal(buffer, dict(layers[0].named_buffers())[name])
            loose = {} if dtype == torch.float32 else {"rtol": 1e-4, "atol": 1e-4}
            torch.testing.assert_close(buffer, dict(whole.named_buffers())[name], **loose)
        assert torch.equal(layer.eval()(images.float()), copy.deepcopy(layer).eval()(images.float()))
    assert group.num_sums == 4


@pytest.mark.parametrize("sizes", [[5, 5, 5, 1], [1, 1], [3, 0, 2], [4]], ids=str)
def test_a_group_is_one_rank_with_all_images(sizes: list[int]) -> None:
    check_same(sizes)


def test_a_mean_far_from_zero_loses_no_digits_once_it_is_tracked() -> None:
    generator = torch.Generator().manual_seed(1)
    images = (3000 + torch.randn(8, 2, 16, 16, generator=generator)).requires_grad_()
    layers = [normalize_over(nn.BatchNorm2d(2, momentum=1.0), group := ThreadGroup(2)), None]
    layers[1] = normalize_over(nn.BatchNorm2d(2, momentum=1.0), group)
    for _ in range(2):  # the first step finds the mean
        outputs = on_ranks(2, lambda rank: layers[rank](images[rank * 4 : rank * 4 + 4]).detach())
    expected = nn.BatchNorm2d(2).double()(images.double()).float()
    torch.testing.assert_close(torch.cat(outputs), expected.detach(), rtol=1e-3, atol=2e-3)


def test_statistics_of_bfloat16_input_are_float32() -> None:
    check_same([5, 5, 5, 1], torch.bfloat16)


def test_no_images_at_all_change_nothing() -> None:
    layer = normalize_over(nn.BatchNorm2d(3), lambda values: values)
    before = copy.deepcopy(layer.state_dict())
    empty = torch.zeros(0, 3, 2, 2, requires_grad=True)
    layer(empty).sum().backward()
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


def test_a_net_keeps_its_names_and_scores() -> None:
    torch.manual_seed(0)
    plain = build_model("resnet20", 5)
    net = normalize_over(copy.deepcopy(plain), lambda values: values)
    assert sum(isinstance(module, GroupBatchNorm2d) for module in net.modules()) == 19
    assert list(net.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in net.named_parameters()] == [name for name, _ in plain.named_parameters()]
    images = torch.randn(4, 3, 16, 16)
    torch.testing.assert_close(net(images), plain(images), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(net.eval()(images), plain.eval()(images), rtol=1e-4, atol=1e-5)
    plain.load_state_dict(net.state_dict())


def test_other_settings_of_a_layer_are_kept() -> None:
    for options in ({"affine": False}, {"momentum": None}, {"track_running_stats": False}, {"eps": 0.1}):
        torch.manual_seed(0)
        plain = nn.BatchNorm2d(3, **options)  # type: ignore[arg-type]
        layer = normalize_over(copy.deepcopy(plain), lambda values: values)
        for _ in range(2):
            images = torch.randn(4, 3, 5, 5)
            torch.testing.assert_close(layer(images), plain(images), rtol=1e-5, atol=1e-5)
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(layer.state_dict()[name], value)


def test_groups_fill_the_world() -> None:
    check_group(4, 8)
    with pytest.raises(RecipeError, match=r"bn\.group = 4 does not divide the 6 ranks"):
        check_group(4, 6)
