"""ResNet-20/32/44/56/110 for small images (He et al. 2015, section 4.2), made for the 32x32 pixels of CIFAR.

A 3x3 stem at full size, then three stages of n blocks with 16, 32 and 64 channels: 6n + 2 layers. Shortcuts
are the paper's option A, the one it used for CIFAR: where a block halves the size, the shortcut takes every
second pixel and fills the new channels with zeros. It has no parameters.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from ddltrain.nets.layers import Classifier, conv_bn, init_weights

WIDTHS = (16, 32, 64)


class CifarBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut without parameters; a block that widens also halves the size."""

    def __init__(self, in_channels: int, width: int) -> None:
        super().__init__()
        self.new_channels = width - in_channels
        self.conv1, self.bn1 = conv_bn(in_channels, width, 3, stride=2 if self.new_channels else 1)
        self.conv2, self.bn2 = conv_bn(width, width, 3)
        self.relu = nn.ReLU(inplace=True)

    def shortcut(self, x: Tensor) -> Tensor:
        """The input itself, or every second pixel of it with zeros for the channels it lacks."""
        if not self.new_channels:
            return x
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.new_channels))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        result: Tensor = self.relu(out)
        return result


class CifarResNet(nn.Module):
    """Stem, three stages of ``num_blocks`` residual blocks, global average pool, one linear layer.

    Args:
        num_blocks: Blocks of each stage, the paper's n.
        num_classes: Length of the output, at least 1.
        zero_init_residual: Whether the last gamma of each block starts at 0, so that it starts as
            relu(shortcut).
    """

    def __init__(self, num_blocks: int, num_classes: int, zero_init_residual: bool) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv_bn(3, WIDTHS[0], 3)
        self.relu = nn.ReLU(inplace=True)
        in_channels = WIDTHS[0]
        stages = []
        for width in WIDTHS:
            blocks = []
            for _ in range(num_blocks):
                blocks.append(CifarBlock(in_channels, width))
                in_channels = width
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3 = stages
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = Classifier(in_channels, num_classes)
        init_weights(self)
        if zero_init_residual:
            for module in self.modules():
                if isinstance(module, CifarBlock):
                    nn.init.zeros_(module.bn2.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores, float [n, num_classes], of images of any size, float [n, 3, height, width]."""
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        scores: Tensor = self.fc(self.avgpool(x).flatten(1))
        return scores


def resnet20(num_classes: int, zero_init_residual: bool = False) -> CifarResNet:
    """0.27 million parameters (at 10 classes)."""
    return CifarResNet(3, num_classes, zero_init_residual)


def resnet32(num_classes: int, zero_init_residual: bool = False) -> CifarResNet:
    """0.46 million parameters."""
    return CifarResNet(5, num_classes, zero_init_residual)


def resnet44(num_classes: int, zero_init_residual: bool = False) -> CifarResNet:
    """0.66 million parameters."""
    return CifarResNet(7, num_classes, zero_init_residual)


def resnet56(num_classes: int, zero_init_residual: bool = False) -> CifarResNet:
    """0.85 million parameters."""
    return CifarResNet(9, num_classes, zero_init_residual)


def resnet110(num_classes: int, zero_init_residual: bool = False) -> CifarResNet:
    """1.7 million parameters."""
    return CifarResNet(18, num_classes, zero_init_residual)
