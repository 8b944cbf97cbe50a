import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import v2

from ddltrain.input.transform import (
    center_box,
    eval_transform,
    random_resized_box,
    record_generator,
    train_transform,
)
from ddltrain.recipe import DataRecipe


def picture(width: int, height: int) -> Image.Image:
    """A smooth picture with no symmetry."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    channels = [x * 255, y * 200, (np.sin(7 * x + 3 * y) + 1) * 120]
    return Image.fromarray(np.stack(channels, axis=-1).astype(np.uint8))


def generator() -> np.random.Generator:
    return record_generator(seed=1, epoch=2, record=3)


@pytest.mark.parametrize(("width", "height"), [(500, 375), (375, 500), (256, 256), (90, 61), (301, 1003)])
def test_evaluation_shows_what_torchvision_shows(width: int, height: int) -> None:
    image = picture(width, height)
    ours = eval_transform(DataRecipe(image_size=64, eval_crop=0.875))(image, generator())
    theirs = v2.Compose([v2.Resize(73, antialias=True), v2.CenterCrop(64)])(image)
    difference = np.abs(ours.astype(int) - np.asarray(theirs).astype(int))
    assert difference.max() <= 2
    assert difference.mean() < 0.5


def test_evaluation_of_an_image_of_the_right_size_changes_nothing() -> None:
    image = picture(32, 32)
    assert np.array_equal(
        eval_transform(DataRecipe(image_size=32, eval_crop=1.0))(image, generator()), np.asarray(image)
    )


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 64), st.integers(0, 64))
def test_the_centre_window_lies_inside_the_image(width: int, height: int, size: int, more: int) -> None:
    left, top, right, bottom = center_box(width, height, size + more, size)
    assert -1e-9 <= left < right <= width + 1e-6
    assert -1e-9 <= top < bottom <= height + 1e-6


@given(st.integers(1, 800), st.integers(1, 800), st.integers(0, 1 << 40))
def test_a_random_window_lies_inside_the_image(width: int, height: int, record: int) -> None:
    box = random_resized_box(record_generator(0, 0, record), width, height, (0.08, 1.0), (0.75, 4 / 3))
    assert 0 <= box[0] < box[2] <= width
    assert 0 <= box[1] < box[3] <= height


def test_random_windows_are_spread_like_torchvisions() -> None:
    torch.manual_seed(0)
    image = picture(400, 300)
    crop = v2.RandomResizedCrop(8)
    theirs = [crop.make_params([image]) for _ in range(3000)]
    boxes = np.array(
        [
            random_resized_box(record_generator(0, 0, i), 400, 300, (0.08, 1.0), (0.75, 4 / 3))
            for i in range(3000)
        ]
    )
    widths, heights = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    for our_sizes, key in (
        (widths, "width"),
        (heights, "height"),
        (boxes[:, 0], "left"),
        (boxes[:, 1], "top"),
    ):
        their_sizes = np.array([params[key] for params in theirs])
        quantiles = np.linspace(0.05, 0.95, 10)
        assert np.abs(np.quantile(our_sizes, quantiles) - np.quantile(their_sizes, quantiles)).max() < 14


@pytest.mark.parametrize("crop", ["random-resized", "pad", "center"])
def test_randomness_hangs_on_seed_epoch_and_record(crop: str) -> None:
    transform = train_transform(DataRecipe(image_size=24, train_crop=crop))
    image = picture(60, 45)
    keys = [(s, e, r) for s in range(2) for e in range(2) for r in range(8)]
    results = [transform(image, record_generator(*key)).tobytes() for key in keys]
    assert results == [transform(image, record_generator(*key)).tobytes() for key in keys]
    if crop != "center":
        assert len(set(results)) > 24  # few windows coincide by chance


def test_a_padded_crop_shows_the_image_shifted_over_black() -> None:
    image = picture(32, 32)
    transform = train_transform(DataRecipe(image_size=32, train_crop="pad", crop_padding=4, flip=False))
    padded = np.pad(np.asarray(image), ((4, 4), (4, 4), (0, 0)))
    shifts = {
        (top, left)
        for record in range(400)
        for top in range(9)
        for left in range(9)
        if np.array_equal(
            transform(image, record_generator(0, 0, record)), padded[top : top + 32, left : left + 32]
        )
    }
    assert len(shifts) > 60


def test_half_of_the_images_are_flipped() -> None:
    image = picture(16, 16)
    transform = train_transform(DataRecipe(image_size=16, train_crop="center", eval_crop=1.0))
    flipped = [
        np.array_equal(transform(image, record_generator(0, 0, i)), np.asarray(image)[:, ::-1])
        for i in range(400)
    ]
    assert sum(flipped) == pytest.approx(200, abs=40)


def test_pixels_reach_the_network_as_torchvision_would_give_them() -> None:
    from ddltrain.train.inputs import Normalizer

    recipe = DataRecipe()
    image = np.asarray(picture(20, 10))
    batch = torch.from_numpy(image.copy())[None].permute(0, 3, 1, 2)
    ours = Normalizer(recipe, torch.device("cpu"), channels_last=True)(batch)
    theirs = v2.Normalize(list(recipe.mean), list(recipe.std))(
        v2.functional.to_dtype(batch, torch.float32, scale=True)
    )
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert ours.is_contiguous(memory_format=torch.channels_last)
