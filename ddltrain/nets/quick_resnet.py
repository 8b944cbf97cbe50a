"""A shallow and wide residual network for small images, made to be trained quickly.

After D. Page, "How to train your ResNet" (2018): a stage convolves before it halves the size by max pooling, so that the wider
channels see whole pixels, and adds to the result what one more convolution makes of it. Three eighths of Page's width, and in each
stage one more convolution, where two of his have two: 8 layers, about as much arithmetic as ResNet-20 has, in fewer and larger
pieces, which keep a processor's vectors busier.
"""

from torch import Tensor, nn

from ddltrain.errors import RecipeError
from ddltrain.nets.layers import Classifier, conv_bn, init_weights

STEM = 24
WIDTHS = (48, 96, 192)


class QuickStage(nn.Module):
    """x = relu(bn(pool(conv(x)))), then x + relu(bn(conv(x))); half the size, rounded up."""

    def __init__(self, in_channels: int, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv_bn(in_channels, width, 3)
        self.pool = nn.MaxPool2d(2, ceil_mode=True)
        self.conv2, self.bn2 = conv_bn(width, width, 3)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.pool(self.conv1(x))))
        out: Tensor = x + self.relu(self.bn2(self.conv2(x)))
        return out


class QuickResNet(nn.Module):
    """Stem, three stages, global max pool, one linear layer. See the top of this module."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv_bn(3, STEM, 3)
        self.relu = nn.ReLU(inplace=True)
        self.layer1, self.layer2, self.layer3 = (
            QuickStage(in_channels, width)
            for in_channels, width in zip((STEM, *WIDTHS), WIDTHS, strict=False)
        )
        self.maxpool = nn.AdaptiveMaxPool2d(1)
        self.fc = Classifier(WIDTHS[-1], num_classes)
        init_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores, float32 [n, num_classes], of images of any size, float [n, 3, height, width]."""
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        scores: Tensor = self.fc(self.maxpool(x).flatten(1))
        return scores


def quick_resnet8(num_classes: int, zero_init_residual: bool = False) -> QuickResNet:
    """0.66 million parameters (at 10 classes).

    Raises:
        RecipeError: `zero_init_residual`, for what a ReLU follows cannot start at 0.
    """
    if zero_init_residual:
        raise RecipeError(
            "model.zero_init_residual = true is not for quick_resnet8: a ReLU follows its last gammas, and would pass no "
            "gradient to those that are 0; set model.zero_init_residual=false"
        )
    return QuickResNet(num_classes)
