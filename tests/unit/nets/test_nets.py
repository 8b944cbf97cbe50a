"""Built-in networks: shapes, names, counts of parameters, initial values."""

import copy
from collections.abc import Callable

import pytest
import torch
import torchvision
from torch import Tensor, nn

from ddltrain.errors import RecipeError
from ddltrain.nets import NETS, build_model
from ddltrain.nets.cifar_resnet import CifarBlock
from ddltrain.nets.resnet import BasicBlock, Bottleneck

BIG = ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"]
SMALL = ["resnet20", "resnet32", "resnet44", "resnet56", "resnet110"]


def randomize(model: nn.Module) -> None:
    """Give every tensor of a state dict a value of its own, near where trained ones lie."""
    for name, tensor in model.state_dict().items():
        if name.endswith("running_var"):
            tensor.uniform_(0.5, 2)
        elif name.endswith(("running_mean", "bias")):
            tensor.normal_(std=0.1)
        elif tensor.ndim == 1:
            tensor.uniform_(0.2, 0.6)


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", BIG)
def test_exchanges_weights_with_torchvision(name: str) -> None:
    torch.manual_seed(1)
    ours = build_model(name, 7).eval()
    theirs = getattr(torchvision.models, name)(num_classes=7).eval()
    images = torch.randn(2, 3, 65, 48)

    randomize(theirs)
    ours.load_state_dict(theirs.state_dict())
    with torch.inference_mode():
        expected = theirs(images)
        assert expected.std() > 1e-3
        torch.testing.assert_close(ours(images), expected, rtol=1e-5, atol=1e-5)

    ours = build_model(name, 7).eval()
    randomize(ours)
    theirs.load_state_dict(ours.state_dict())
    with torch.inference_mode():
        torch.testing.assert_close(ours(images), theirs(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "millions"),
    [("resnet20", 0.27), ("resnet32", 0.46), ("resnet44", 0.66), ("resnet56", 0.85), ("resnet110", 1.7)],
)
def test_cifar_networks_have_the_published_size(name: str, millions: float) -> None:
    digits = 1 if millions > 1 else 2
    assert round(num_parameters(build_model(name, 10)) / 1e6, digits) == millions


def test_googlenet_has_the_published_size_and_shapes() -> None:
    model = build_model("googlenet_bn", 1000)
    # The figure known for it counts the biases of the convolutions, which batch normalization makes idle.
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert num_parameters(model) + sum(conv.out_channels for conv in convolutions) == 11_295_240
    assert all(conv.bias is None for conv in convolutions)
    seen: dict[str, tuple[int, ...]] = {}
    for name, block in model.get_submodule("blocks").named_children():
        block.register_forward_hook(
            lambda _, __, output, name=name: seen.update({name[-2:]: tuple(output.shape[1:])})
        )
    with torch.inference_mode():
        model.eval()(torch.zeros(1, 3, 224, 224))
    assert seen == {
        "3a": (256, 28, 28),
        "3b": (320, 28, 28),
        "3c": (576, 14, 14),
        **dict.fromkeys(("4a", "4b"), (576, 14, 14)),
        **dict.fromkeys(("4c", "4d"), (608, 14, 14)),
        "4e": (1056, 7, 7),
        **dict.fromkeys(("5a", "5b"), (1024, 7, 7)),
    }
    with pytest.raises(RecipeError, match="zero_init_residual"):
        build_model("googlenet_bn", 10, zero_init_residual=True)


def test_quick_resnet_by_hand() -> None:
    model = build_model("quick_resnet8", 10)
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(layers) == 8
    convolutions = 9 * (3 * 24 + 24 * 48 + 48 * 48 + 48 * 96 + 96 * 96 + 96 * 192 + 192 * 192)
    assert num_parameters(model) == convolutions + 2 * (24 + 2 * (48 + 96 + 192)) + 193 * 10
    shapes: list[tuple[int, ...]] = []
    for name in ("layer1", "layer2", "layer3"):
        model.get_submodule(name).register_forward_hook(lambda _, __, out: shapes.append(tuple(out.shape)))
    model(torch.randn(2, 3, 32, 33))
    assert shapes == [(2, 48, 16, 17), (2, 96, 8, 9), (2, 192, 4, 5)]
    with pytest.raises(RecipeError, match="zero_init_residual"):
        build_model("quick_resnet8", 10, zero_init_residual=True)


def test_scores_are_float32_and_exact_under_autocast() -> None:
    pools = {
        "resnet20": "avgpool",
        "resnet18": "avgpool",
        "googlenet_bn": "avgpool",
        "quick_resnet8": "maxpool",
    }
    for name, pool in pools.items():
        torch.manual_seed(0)
        model = build_model(name, 7)
        features: list[Tensor] = []
        model.get_submodule(pool).register_forward_hook(lambda _, __, out, kept=features: kept.append(out))
        with torch.autocast("cpu", torch.bfloat16):
            scores = model(torch.randn(2, 3, 33, 33))
        assert (scores.dtype, features[0].dtype) == (torch.float32, torch.bfloat16)
        fc = model.get_submodule("fc")
        assert isinstance(fc, nn.Linear)
        torch.testing.assert_close(
            scores, features[0].float().flatten(1) @ fc.weight.T + fc.bias, rtol=1e-5, atol=1e-6
        )
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_mean.dtype == torch.float32


@pytest.mark.parametrize("name", SMALL)
def test_cifar_networks_have_the_layers_of_their_name(name: str) -> None:
    layers = [m for m in build_model(name, 10).modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(layers) == int(name.removeprefix("resnet"))


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnet20", "googlenet_bn", "quick_resnet8"])
@pytest.mark.parametrize("size", [(33, 57), (1, 1), (2, 5), (8, 8)])
def test_takes_any_size_and_one_class(name: str, size: tuple[int, int]) -> None:
    model = build_model(name, 1)
    scores = model(torch.randn(3, 3, *size))
    assert scores.shape == (3, 1)
    scores.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("name", [*BIG[:3], SMALL[0]])
def test_channels_last_gives_the_same_scores(name: str) -> None:
    torch.manual_seed(2)
    model = build_model(name, 5).eval()
    images = torch.randn(2, 3, 33, 57)
    with torch.inference_mode():
        expected = model(images)
        scores = model.to(memory_format=torch.channels_last)(images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnet20"])
def test_zero_gamma_makes_each_block_its_shortcut(name: str) -> None:
    model = build_model(name, 4, zero_init_residual=True)
    seen: list[nn.Module] = []

    def compare(block: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        seen.append(block)
        torch.testing.assert_close(output, torch.relu(shortcut_of(block)(inputs[0])), rtol=0, atol=0)

    shortcut_hooks(model, compare)
    model(torch.randn(2, 3, 33, 57))
    assert len(seen) == {"resnet18": 8, "resnet50": 16, "resnet20": 9}[name]


def shortcut_of(block: nn.Module) -> Callable[[Tensor], Tensor]:
    if isinstance(block, CifarBlock):
        return block.shortcut
    assert isinstance(block, BasicBlock | Bottleneck)
    return block.downsample or nn.Identity()


def shortcut_hooks(model: nn.Module, hook: Callable[..., None]) -> None:
    for module in model.modules():
        if isinstance(module, CifarBlock | BasicBlock | Bottleneck):
            module.register_forward_hook(hook)


@pytest.mark.parametrize(("name", "last"), [("resnet18", "bn2"), ("resnet50", "bn3"), ("resnet20", "bn2")])
def test_zero_init_residual_touches_each_block_s_last_gamma_alone(name: str, last: str) -> None:
    for zero_init_residual in (False, True):
        for part, module in build_model(name, 4, zero_init_residual).named_modules():
            if isinstance(module, nn.BatchNorm2d):
                gamma = 0 if zero_init_residual and part.startswith("layer") and part.endswith(last) else 1
                assert bool((module.weight == gamma).all()), part


def test_cifar_shortcut_takes_every_second_pixel_and_adds_zero_channels() -> None:
    x = torch.arange(2 * 16 * 5 * 3, dtype=torch.float32).reshape(2, 16, 5, 3) + 1
    out = CifarBlock(16, 32).shortcut(x)
    assert out.shape == (2, 32, 3, 2)
    for row in range(3):
        for column in range(2):
            assert torch.equal(out[:, :16, row, column], x[:, :, 2 * row, 2 * column])
    assert not out[:, 16:].any()


def test_stride_sits_in_the_3x3_convolution() -> None:
    block = build_model("resnet50", 4).get_submodule("layer2.0")
    assert isinstance(block, Bottleneck)
    assert (block.conv1.stride, block.conv2.stride, block.conv3.stride) == ((1, 1), (2, 2), (1, 1))


def test_initial_weights_follow_the_literature() -> None:
    torch.manual_seed(3)
    model = build_model("resnet50", 1000)
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] * module.kernel_size[1]
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05), name
    fc = model.get_submodule("fc")
    assert isinstance(fc, nn.Linear)
    assert fc.weight.std().item() == pytest.approx(0.01, rel=0.01)
    assert not fc.bias.any()


def test_same_seed_same_weights() -> None:
    torch.manual_seed(4)
    first = copy.deepcopy(build_model("resnet20", 10).state_dict())
    torch.manual_seed(4)
    second = build_model("resnet20", 10).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("num_classes", [0, -3])
def test_refuses_fewer_classes_than_one(num_classes: int) -> None:
    with pytest.raises(RecipeError, match=f"at least 1 class, not {num_classes}"):
        build_model("resnet18", num_classes)


def test_unknown_name_names_the_nearest_and_all() -> None:
    with pytest.raises(RecipeError) as caught:
        build_model("Resnet-50", 10)
    message = str(caught.value)
    assert 'unknown model.name "Resnet-50"; the nearest known one is "resnet50"' in message
    assert all(name in message for name in NETS)
    assert "\n" not in message
