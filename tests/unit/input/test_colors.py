"""Changes of color against torchvision's, one image and one operation at a time."""

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as tvf
from torch import Tensor

from ddltrain.input.colors import Augmenter, ColorChange, jitter, lighting
from ddltrain.recipe import DataRecipe


def pixels(count: int, size: int = 8) -> Tensor:
    """Between 0.4 and 0.6, so that torchvision, which clips to 0 and 1, does not clip."""
    return 0.4 + 0.2 * torch.rand(count, 3, size, size + 2, generator=torch.Generator().manual_seed(0))


def normalized(images: Tensor, recipe: DataRecipe) -> Tensor:
    mean, std = torch.tensor(recipe.mean).view(1, 3, 1, 1), torch.tensor(recipe.std).view(1, 3, 1, 1)
    return (images - mean) / std


def test_jitter_is_torchvisions_operations_in_each_images_order() -> None:
    images = pixels(6)
    orders = torch.tensor([[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]])
    factors = 1 + 0.3 * torch.randn(6, 3, generator=torch.Generator().manual_seed(1)).clamp(-1, 1)
    operations = (tvf.adjust_brightness, tvf.adjust_contrast, tvf.adjust_saturation)
    changed = jitter(images, orders, factors)
    for image, order, factor, ours in zip(images, orders, factors, changed, strict=True):
        for kind in order.tolist():
            image = operations[kind](image, factor[kind].item())  # noqa: PLW2901
        torch.testing.assert_close(
            ours, image, rtol=1e-3, atol=1e-3
        )  # weights of gray have fewer digits there


def test_lighting_moves_along_the_main_axes() -> None:
    shift = lighting(np.array([[1.0, 0.0, 0.0], [0.0, 2.0, -1.0]])).flatten(1)
    torch.testing.assert_close(shift[0], 0.2175 * torch.tensor([-0.5675, -0.5808, -0.5836]).double())
    expected = 2 * 0.0188 * torch.tensor([0.7192, -0.0045, -0.6948]) - 0.0045 * torch.tensor(
        [0.4009, -0.8140, 0.4203]
    )
    torch.testing.assert_close(shift[1], expected.double())


@pytest.mark.parametrize("options", [{"color_jitter": 0.4}, {"lighting": 0.1}], ids=str)
def test_each_record_has_its_own_change_wherever_it_comes(options: dict[str, float]) -> None:
    recipe = DataRecipe(**options)  # type: ignore[arg-type]
    change = ColorChange(recipe, seed=3)
    images = normalized(pixels(1).expand(5, 3, 8, 10), recipe)
    records = np.array([4, 0, 9, 2, 7])
    whole = change(images, records, 1)
    assert len({image.sum().item() for image in whole}) == 5
    torch.testing.assert_close(change(images[2:4], records[2:4], 1), whole[2:4])
    assert not torch.allclose(change(images, records, 2), whole)
    assert not torch.allclose(ColorChange(recipe, seed=4)(images, records, 1), whole)
    assert change(images[:0], records[:0], 1).shape == (0, 3, 8, 10)


def test_lighting_has_the_spread_that_is_asked_for() -> None:
    recipe = DataRecipe(lighting=0.1)
    gray = torch.full((2000, 3, 1, 1), 0.5)
    shifted = ColorChange(recipe, 0)(normalized(gray, recipe), np.arange(2000), 0)
    std = torch.tensor(recipe.std).view(3, 1)
    moved = (shifted.flatten(2)[:, :, 0] * std.T + torch.tensor(recipe.mean)) - 0.5
    vectors = torch.tensor([-0.5675, -0.5808, -0.5836])
    assert (moved @ vectors).std().item() == pytest.approx(0.1 * 0.2175, rel=0.1)


def test_nothing_asked_for_changes_nothing() -> None:
    images = pixels(2)
    assert ColorChange(DataRecipe(), 0)(images, np.arange(2), 0) is images
    assert Augmenter(DataRecipe(), 0)(images, np.arange(2), 0) is images


def test_randaugment_is_keyed_by_record_and_leaves_the_generator_alone() -> None:
    images = torch.randint(256, (4, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = images.contiguous(memory_format=torch.channels_last)
    before = images.clone()
    augment = Augmenter(DataRecipe(randaugment=(2, 9)), 5)
    torch.manual_seed(11)
    whole = augment(images, np.arange(4), 0)
    drawn = torch.rand(1)
    torch.manual_seed(11)
    assert torch.equal(drawn, torch.rand(1))
    assert torch.equal(images, before)
    assert whole.dtype == torch.uint8
    assert torch.equal(augment(images[1:3], np.arange(1, 3), 0), whole[1:3])
    changed = [augment(images, np.arange(4), epoch) for epoch in range(3)]
    assert any(not torch.equal(one, images) for one in changed)
    assert not torch.equal(changed[0], changed[1])
