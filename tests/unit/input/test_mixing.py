"""Mixup and cutmix against their formulas."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ddltrain.input.mixing import Targets, mix, mix_generator
from ddltrain.recipe import DataRecipe


def batch(count: int, size: int = 9) -> tuple[Tensor, Tensor]:
    """Image i is i everywhere."""
    images = torch.arange(count, dtype=torch.float32).view(-1, 1, 1, 1).expand(count, 3, size, size)
    return images.contiguous(memory_format=torch.channels_last), torch.arange(count) + 100


def test_mixup_shows_both_images_by_their_shares() -> None:
    images, labels = batch(7)
    mixed, targets = mix(images, labels, DataRecipe(mixup=0.4), mix_generator(1, 2, 3, 0))
    assert targets.others is not None
    assert sorted(targets.others.tolist()) == labels.tolist()
    expected = targets.share * (targets.labels - 100) + (1 - targets.share) * (targets.others - 100)
    torch.testing.assert_close(mixed, expected.float().view(-1, 1, 1, 1).expand(mixed.shape))
    assert mixed.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, batch(7)[0])


def test_cutmix_shows_a_window_of_the_other_image_and_counts_its_pixels() -> None:
    images, labels = batch(7)
    shares = set()
    for step in range(50):
        mixed, targets = mix(images, labels, DataRecipe(cutmix=1.0), mix_generator(1, step, 0, 0))
        assert targets.others is not None
        own, other = (targets.labels - 100).view(-1, 1, 1, 1), (targets.others - 100).view(-1, 1, 1, 1)
        assert ((mixed == own) | (mixed == other)).all()
        differs = [place for place in range(7) if own[place] != other[place]]
        for place in differs:
            window = mixed[place, 0] == other[place, 0]
            assert window.float().mean().item() == pytest.approx(1 - targets.share)
            rows, columns = window.any(dim=1).nonzero(), window.any(dim=0).nonzero()
            if len(rows):  # a rectangle
                assert window.sum() == (rows.max() - rows.min() + 1) * (columns.max() - columns.min() + 1)
        shares.add(round(targets.share, 3))
    assert len(shares) > 10


def test_shares_are_beta_distributed_and_both_kinds_take_turns() -> None:
    images, labels = batch(2, size=64)
    shares = [
        mix(images, labels, DataRecipe(mixup=2.0), mix_generator(0, step, 0, 0))[1].share
        for step in range(400)
    ]
    assert np.mean(shares) == pytest.approx(0.5, abs=0.04)
    assert np.var(shares) == pytest.approx(1 / 20, rel=0.25)  # of Beta(2, 2)
    images, labels = batch(7, size=16)
    recipe = DataRecipe(mixup=2.0, cutmix=2.0)
    mixed = [mix(images, labels, recipe, mix_generator(0, step, 0, 0))[0] for step in range(200)]
    num_blended = sum(bool((one != one.round()).any()) for one in mixed)  # cutmix gives whole pixels
    assert 75 < num_blended < 125


def test_random_numbers_are_keyed_by_seed_step_rank_and_part() -> None:
    images, labels = batch(7)
    recipe = DataRecipe(mixup=1.0)
    seen = {
        key: mix(images, labels, recipe, mix_generator(*key))[1].share
        for key in [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]
    }
    assert len(set(seen.values())) == 5
    assert mix(images, labels, recipe, mix_generator(0, 1, 0, 0))[1].share == seen[0, 1, 0, 0]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_that_of_the_mixed_smoothed_labels(smoothing: float) -> None:
    scores = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    labels, others = torch.tensor([0, 1, 2, 3, 0]), torch.tensor([1, 1, 3, 0, 2])
    smooth = torch.full((5, 4), smoothing / 4)
    wanted = smooth + (1 - smoothing) * (0.3 * F.one_hot(labels, 4) + 0.7 * F.one_hot(others, 4))
    expected = -(wanted * scores.log_softmax(dim=1)).sum()
    targets = Targets(labels, others, 0.3)
    torch.testing.assert_close(targets.loss_sum(scores, smoothing), expected)
    assert targets.num_correct(F.one_hot(others, 4).float()) == 5
    assert Targets(labels).num_correct(F.one_hot(labels, 4).float()) == 5


def test_nothing_asked_for_and_no_images_change_nothing() -> None:
    images, labels = batch(4)
    mixed, targets = mix(images, labels, DataRecipe(), mix_generator(0, 0, 0, 0))
    assert mixed is images
    assert targets.others is None
    empty, _ = mix(images[:0], labels[:0], DataRecipe(mixup=1.0), mix_generator(0, 0, 0, 0))
    assert empty.shape == (0, 3, 9, 9)
