"""ResNet-18/34/50/101/152 for photographs (He et al., "Deep Residual Learning for Image Recognition", 2015).

Two things differ from the paper, as in nearly all later work: a bottleneck's stride sits in its 3x3
convolution (the paper has it in the first 1x1, which skips three of four pixels), and each block can start as
relu(shortcut) (its last gamma starts at 0, Goyal et al. 2017). Parameters carry torchvision's names: weights
go both ways.
"""

from torch import Tensor, nn

from ddltrain.nets.layers import Classifier, conv_bn, init_weights

WIDTHS = (64, 128, 256, 512)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: ResNet-18 and -34."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv_bn(in_channels, width, 3, stride)
        self.conv2, self.bn2 = conv_bn(width, width, 3)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = projection(in_channels, width, stride)

    @property
    def last_bn(self) -> nn.BatchNorm2d:
        """The normalization right before the shortcut is added."""
        return self.bn2

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        result: Tensor = self.relu(out)
        return result


class Bottleneck(nn.Module):
    """1x1 down, 3x3, 1x1 up to four times the width, and a shortcut: ResNet-50 and deeper."""

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = width * self.expansion
        self.conv1, self.bn1 = conv_bn(in_channels, width, 1)
        self.conv2, self.bn2 = conv_bn(width, width, 3, stride)
        self.conv3, self.bn3 = conv_bn(width, out_channels, 1)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = projection(in_channels, out_channels, stride)

    @property
    def last_bn(self) -> nn.BatchNorm2d:
        """The normalization right before the shortcut is added."""
        return self.bn3

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        result: Tensor = self.relu(out)
        return result


def projection(in_channels: int, out_channels: int, stride: int) -> nn.Sequential | None:
    """The shortcut of a block that changes the shape, a 1x1 convolution (the paper's option B), else None."""
    if stride == 1 and in_channels == out_channels:
        return None
    return nn.Sequential(*conv_bn(in_channels, out_channels, 1, stride))


class ResNet(nn.Module):
    """Stem, four stages of residual blocks, global average pool, one linear layer.

    Args:
        block: BasicBlock or Bottleneck.
        depths: Number of blocks of each of the four stages.
        num_classes: Length of the output, at least 1.
        zero_init_residual: Whether the last gamma of each block starts at 0, so that it starts as
            relu(shortcut).
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, int, int, int],
        num_classes: int,
        zero_init_residual: bool,
    ) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv_bn(3, WIDTHS[0], 7, 2)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        in_channels = WIDTHS[0]
        stages: list[nn.Sequential] = []
        for width, depth in zip(WIDTHS, depths, strict=True):
            blocks = []
            for position in range(depth):
                stride = 2 if position == 0 and stages else 1  # the first stage follows the stem's max pool
                blocks.append(block(in_channels, width, stride))
                in_channels = width * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = Classifier(in_channels, num_classes)
        init_weights(self)
        if zero_init_residual:
            for module in self.modules():
                if isinstance(module, BasicBlock | Bottleneck):
                    nn.init.zeros_(module.last_bn.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores, float [n, num_classes], of images of any size, float [n, 3, height, width]."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        scores: Tensor = self.fc(self.avgpool(x).flatten(1))
        return scores


def resnet18(num_classes: int, zero_init_residual: bool = False) -> ResNet:
    """11.7 million parameters (at 1,000 classes)."""
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes, zero_init_residual)


def resnet34(num_classes: int, zero_init_residual: bool = False) -> ResNet:
    """21.8 million parameters."""
    return ResNet(BasicBlock, (3, 4, 6, 3), num_classes, zero_init_residual)


def resnet50(num_classes: int, zero_init_residual: bool = False) -> ResNet:
    """25.6 million parameters."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes, zero_init_residual)


def resnet101(num_classes: int, zero_init_residual: bool = False) -> ResNet:
    """44.5 million parameters."""
    return ResNet(Bottleneck, (3, 4, 23, 3), num_classes, zero_init_residual)


def resnet152(num_classes: int, zero_init_residual: bool = False) -> ResNet:
    """60.2 million parameters."""
    return ResNet(Bottleneck, (3, 8, 36, 3), num_classes, zero_init_residual)
