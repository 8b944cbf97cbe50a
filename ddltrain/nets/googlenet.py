"""GoogLeNet with batch normalization (Ioffe and Szegedy, "Batch Normalization", 2015, figure 5), also called Inception-BN.

    image ─ 7x7/2 ─ pool/2 ─ 1x1 ─ 3x3 ─ pool/2 ─ 3a 3b 3c/2 ─ 4a 4b 4c 4d 4e/2 ─ 5a 5b ─ average ─ linear

Each block has up to four branches, whose channels are joined: 1x1; 1x1, 3x3; 1x1, 3x3, 3x3; and a pool with a 1x1. A block that halves
the size has no 1x1 branch, and its pool passes on what it gets. Every convolution is followed by batch normalization and ReLU, and has no
bias of its own. The two side classifiers of the first GoogLeNet are left out, as in the paper's figure.
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from ddltrain.errors import RecipeError
from ddltrain.nets.layers import Classifier, conv_bn, init_weights

# name, 1x1, (1x1, 3x3), (1x1, 3x3, 3x3), the pool's kind and 1x1; 0: not there. The figure's table.
_BLOCKS: tuple[tuple[str, int, tuple[int, int], tuple[int, int, int], str, int], ...] = (
    ("3a", 64, (64, 64), (64, 96, 96), "average", 32),
    ("3b", 64, (64, 96), (64, 96, 96), "average", 64),
    ("3c", 0, (128, 160), (64, 96, 96), "max", 0),
    ("4a", 224, (64, 96), (96, 128, 128), "average", 128),
    ("4b", 192, (96, 128), (96, 128, 128), "average", 128),
    ("4c", 160, (128, 160), (128, 160, 160), "average", 128),
    ("4d", 96, (128, 192), (160, 192, 192), "average", 128),
    ("4e", 0, (128, 192), (192, 256, 256), "max", 0),
    ("5a", 352, (192, 320), (160, 224, 224), "average", 128),
    ("5b", 352, (192, 320), (192, 224, 224), "max", 128),
)


def _unit(in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv, norm = conv_bn(in_channels, out_channels, kernel, stride)
    return nn.Sequential(OrderedDict(conv=conv, bn=norm, relu=nn.ReLU(inplace=True)))


class Inception(nn.Module):
    """One block; `out_channels` is what its branches have together."""

    def __init__(
        self,
        in_channels: int,
        single: int,
        double: tuple[int, int],
        triple: tuple[int, int, int],
        pool: str,
        projected: int,
    ) -> None:
        super().__init__()
        stride = 1 if single else 2
        branches: list[nn.Module] = []
        if single:
            branches.append(_unit(in_channels, single, 1))
        branches.append(nn.Sequential(_unit(in_channels, double[0], 1), _unit(*double, 3, stride)))
        branches.append(
            nn.Sequential(
                _unit(in_channels, triple[0], 1), _unit(*triple[:2], 3), _unit(*triple[1:], 3, stride)
            )
        )
        pooling: nn.Module = (
            nn.MaxPool2d(3, stride, padding=1)
            if pool == "max"
            else nn.AvgPool2d(3, stride, padding=1, count_include_pad=False)
        )
        branches.append(
            nn.Sequential(pooling, _unit(in_channels, projected, 1)) if projected else nn.Sequential(pooling)
        )
        self.branches = nn.ModuleList(branches)
        self.out_channels = single + double[1] + triple[2] + (projected or in_channels)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


class GoogLeNet(nn.Module):
    """See the top of this module."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            _unit(3, 64, 7, 2),
            nn.MaxPool2d(3, stride=2, padding=1),
            _unit(64, 64, 1),
            _unit(64, 192, 3),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks: OrderedDict[str, nn.Module] = OrderedDict()
        channels = 192
        for name, *sizes in _BLOCKS:
            block = Inception(channels, *sizes)  # type: ignore[arg-type]
            blocks[f"inception_{name}"] = block
            channels = block.out_channels
        self.blocks = nn.Sequential(blocks)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = Classifier(channels, num_classes)
        init_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores, float32 [n, num_classes], of images of any size, float [n, 3, height, width]."""
        scores: Tensor = self.fc(self.avgpool(self.blocks(self.stem(x))).flatten(1))
        return scores


def googlenet_bn(num_classes: int, zero_init_residual: bool = False) -> GoogLeNet:
    """11.3 million parameters (at 1,000 classes)."""
    if zero_init_residual:
        raise RecipeError(
            "model.zero_init_residual = true is for networks with shortcuts, and googlenet_bn has none; set model.zero_init_residual=false"
        )
    return GoogLeNet(num_classes)
