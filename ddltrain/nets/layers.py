"""What the networks share: the convolution with its batch normalization, and the weights they start from."""

import torch
from torch import Tensor, nn


def conv_bn(
    in_channels: int, out_channels: int, kernel: int, stride: int = 1
) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """A convolution that divides the size by `stride`, rounded up, and its batch normalization."""
    conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=False)
    return conv, nn.BatchNorm2d(out_channels)


class Classifier(nn.Linear):
    """The last layer, in float32 also where the layers before it compute in 16 bits: scores would else lose digits."""

    def forward(self, input: Tensor) -> Tensor:
        """float [n, in_features] -> float32 [n, out_features]."""
        with torch.autocast(input.device.type, enabled=False):
            return super().forward(input.float())


def init_weights(model: nn.Module) -> None:
    """Fill in random weights as the ResNet literature does.

    Convolutions: N(0, sqrt(2 / fan-out)) (He et al. 2015). Linear layers: N(0, 0.01), bias 0 (Goyal et al.
        2017). Batch normalizations keep torch's gamma 1 and beta 0.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)
