"""Crops are drawn as a plain reference draws them, from random numbers that depend on seed, epoch and record only."""

import math

import numpy as np
import pictures
import pytest
import torch

from ddltrain.input import _image
from ddltrain.input.decode import Sampling, eval_sampling, train_sampling
from ddltrain.recipe import DataRecipe

WHOLE = Sampling(32, crop="random-resized", flip=True)


def random_words(seed: int, epoch: int, record: int, draw: int) -> list[int]:
    """Philox4x32-10 (Salmon et al. 2011)."""
    counter, key = [record & 0xFFFFFFFF, record >> 32, draw, 0], [seed, epoch]
    for _ in range(10):
        even, odd = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            odd >> 32 ^ counter[1] ^ key[0],
            odd & 0xFFFFFFFF,
            even >> 32 ^ counter[3] ^ key[1],
            even & 0xFFFFFFFF,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return counter


def random_window(
    sampling: Sampling, width: int, height: int, seed: int, epoch: int, record: int
) -> tuple[int, int, int, int]:
    for draw in range(1, 11):
        words = random_words(seed, epoch, record, draw)
        part = sampling.scale[0] + (sampling.scale[1] - sampling.scale[0]) * words[0] / 2**32
        low, high = (math.log(value) for value in sampling.ratio)
        aspect = math.exp(low + (high - low) * words[1] / 2**32)
        across = math.floor(math.sqrt(width * height * part * aspect) + 0.5)
        down = math.floor(math.sqrt(width * height * part / aspect) + 0.5)
        if 0 < across <= width and 0 < down <= height:
            left = words[2] * (width - across + 1) >> 32
            top = words[3] * (height - down + 1) >> 32
            return left, top, left + across, top + down
    aspect = min(max(width / height, sampling.ratio[0]), sampling.ratio[1])
    across = max(1, min(width, math.floor(height * aspect + 0.5)))
    down = max(1, min(height, math.floor(width / aspect + 0.5)))
    left, top = (width - across) // 2, (height - down) // 2
    return left, top, left + across, top + down


def window(crop: _image.Crop) -> tuple[float, float, float, float]:
    return crop.left, crop.top, crop.right, crop.bottom


def test_the_generator_is_philox() -> None:
    """The reference gives the published answer."""
    assert random_words(0, 0, 0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@pytest.mark.parametrize(("width", "height"), [(500, 333), (31, 200), (200, 3), (1, 1)])
def test_random_windows(width: int, height: int) -> None:
    for seed, epoch, record in [(0, 0, 0), (3, 1, 0), (2**32 - 1, 89, 2**40 + 5)]:
        for more in range(100):
            crop = WHOLE.draw(width, height, seed, epoch, record + more)
            assert window(crop) == random_window(WHOLE, width, height, seed, epoch, record + more)
            assert crop.flip == bool(random_words(seed, epoch, record + more, 0)[0] >> 31)


def test_random_windows_fill_their_range() -> None:
    crops = [WHOLE.draw(400, 300, 7, 0, record) for record in range(4000)]
    areas = [(crop.right - crop.left) * (crop.bottom - crop.top) / 120000 for crop in crops]
    ratios = [(crop.right - crop.left) / (crop.bottom - crop.top) for crop in crops]
    assert 0.075 < min(areas) < 0.1
    assert 0.9 < max(areas) <= 1
    assert 0.73 < min(ratios) < 0.78
    assert 1.3 < max(ratios) < 1.37
    assert abs(np.mean([crop.flip for crop in crops]) - 0.5) < 0.04


def test_seed_epoch_and_record_all_matter() -> None:
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 1 << 32)]
    assert len({window(WHOLE.draw(500, 400, *key)) for key in keys}) == len(keys)


@pytest.mark.parametrize("side", [32, 45])
@pytest.mark.parametrize("padding", [0, 4, 40])
def test_padded_windows(side: int, padding: int) -> None:
    sampling = Sampling(32, crop="pad", padding=padding, flip=True)
    record = _image.pack_pixels(pictures.picture(side, side))
    (square,) = pictures.decode(record, Sampling(32))
    padded = np.pad(square, ((padding, padding), (padding, padding), (0, 0)))
    for key, image in enumerate(pictures.decode(record, sampling, 30)):
        flip, across, down, _ = random_words(1, 0, key, 0)
        left, top = (word * (2 * padding + 1) >> 32 for word in (across, down))
        wanted = padded[top : top + 32, left : left + 32]
        assert np.array_equal(image, wanted[:, ::-1] if flip >> 31 else wanted)


def test_padding_is_black_in_photos_of_any_mode() -> None:
    record = _image.pack_jpeg(pictures.jpeg(45, 45, (2, 2)))
    for mode in ("fast", "exact"):
        for image in pictures.decode(record, Sampling(32, crop="pad", padding=64, mode=mode), 40):
            rows, columns = image.any(axis=(1, 2)), image.any(axis=(0, 2))
            assert not image[~rows].any()
            assert not image[:, ~columns].any()


def test_the_centre_is_not_random() -> None:
    sampling = Sampling(24, resize=30)
    assert len({window(sampling.draw(60, 45, seed, 1, 2)) for seed in range(5)}) == 1
    assert window(sampling.draw(60, 45, 0, 0, 0)) == (12.0, 4.5, 48.0, 40.5)


def test_samplings_of_a_recipe() -> None:
    recipe = DataRecipe(image_size=112, train_crop="pad", crop_padding=3, decode="exact", eval_crop=0.7)
    train, evaluation = train_sampling(recipe), eval_sampling(recipe, "float32", channels_last=False)
    assert (train.crop, train.padding, train.flip, train.mode, train.output) == (
        "pad",
        3,
        True,
        "exact",
        "uint8",
    )
    assert (evaluation.crop, evaluation.resize, evaluation.flip) == ("center", 160, False)
    assert evaluation.empty_batch(2).dtype == torch.float32
    assert evaluation.empty_batch(2).is_contiguous()
    assert train.empty_batch(2).is_contiguous(memory_format=torch.channels_last)
