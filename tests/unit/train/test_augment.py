import torch
import torch.nn.functional as F

from ddltrain.train.augment import resized, size_of_epoch


def test_the_size_of_an_epoch_is_that_of_the_last_pair_that_has_begun() -> None:
    sizes = ((0, 128), (10, 160), (12, 192))
    assert [size_of_epoch(sizes, epoch, 224) for epoch in (0, 9, 10, 11, 12, 99)] == [
        128,
        128,
        160,
        160,
        192,
        192,
    ]
    assert size_of_epoch((), 5, 224) == 224


def test_resizing_smooths_and_keeps_the_layout() -> None:
    images = torch.randn(3, 3, 24, 24).contiguous(memory_format=torch.channels_last)
    small = resized(images, 16)
    expected = F.interpolate(images.contiguous(), (16, 16), mode="bilinear", antialias=True)
    torch.testing.assert_close(small, expected)
    assert small.is_contiguous(memory_format=torch.channels_last)
    assert resized(images, 24) is images
    assert resized(images[:0], 16).shape == (0, 3, 16, 16)
    flat = resized(torch.ones(1, 3, 24, 24), 10)
    torch.testing.assert_close(flat, torch.ones(1, 3, 10, 10))
