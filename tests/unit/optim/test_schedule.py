"""The learning rate against formulas written out anew."""

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddltrain.optim import Schedule, make_schedule
from ddltrain.recipe import ScheduleRecipe


def make(peak_lr: float = 0.8, epochs: int = 90, steps_per_epoch: int = 7, **recipe: Any) -> Schedule:
    return make_schedule(ScheduleRecipe(**recipe), peak_lr, epochs, steps_per_epoch)


def test_goyal_s_warm_up_at_the_named_steps() -> None:
    """8 ranks of 32: from 0.1 to 0.8 over 5 epochs of 7 steps, then a tenth at 30, 60 and 80 epochs."""
    schedule = make(kind="step", warmup_epochs=5, warmup_start=1 / 8, milestones=(30, 60, 80))
    assert schedule(0) == pytest.approx(0.1)
    assert schedule(1) == pytest.approx(0.1 + 0.7 / 35)
    assert schedule(34) == pytest.approx(0.8 - 0.7 / 35)
    assert schedule(35) == pytest.approx(0.8)
    assert schedule(36) == pytest.approx(0.8)
    for epoch, lr in [(30, 0.08), (60, 0.008), (80, 0.0008)]:
        assert schedule(epoch * 7 - 1) == pytest.approx(10 * lr)
        assert schedule(epoch * 7) == pytest.approx(lr)
    assert schedule(629) == schedule(630) == schedule(10**9) == pytest.approx(0.0008)


def test_warm_up_from_zero() -> None:
    schedule = make(kind="step", warmup_epochs=5)
    assert [schedule(0), schedule(7), schedule(35)] == pytest.approx([0, 0.16, 0.8])


def test_no_warm_up_starts_at_the_peak() -> None:
    for kind in ("step", "cosine", "polynomial"):
        assert make(kind=kind, warmup_start=0.1)(0) == pytest.approx(0.8)


def test_part_of_an_epoch_rounds_to_whole_steps() -> None:
    schedule = make(steps_per_epoch=10, kind="step", warmup_epochs=0.26, milestones=(1.55,), gamma=0.5)
    assert schedule(2) < schedule(3) == pytest.approx(0.8)
    assert schedule(15) == pytest.approx(0.8)
    assert schedule(16) == pytest.approx(0.4)


@pytest.mark.parametrize("final", [0.0, 0.01])
def test_cosine_at_the_named_steps(final: float) -> None:
    schedule = make(1.0, 5, 100, kind="cosine", warmup_epochs=1, final=final)
    assert schedule(100) == pytest.approx(1)
    assert schedule(300) == pytest.approx((1 + final) / 2)
    assert final < schedule(499) < final + 1e-4
    assert schedule(500) == schedule(501) == schedule(10**9) == pytest.approx(final, abs=1e-12)


@pytest.mark.parametrize("final", [0.0, 0.01])
def test_polynomial_at_the_named_steps(final: float) -> None:
    schedule = make(1.0, 5, 100, kind="polynomial", warmup_epochs=1, power=2.0, final=final)
    assert schedule(100) == pytest.approx(1)
    assert schedule(300) == pytest.approx(final + (1 - final) / 4)
    assert schedule(499) == pytest.approx(final + (1 - final) / 400**2)
    assert schedule(500) == schedule(501) == schedule(10**9) == pytest.approx(final)


@pytest.mark.parametrize("kind", ["step", "cosine", "polynomial"])
def test_a_run_that_is_all_warm_up(kind: str) -> None:
    schedule = make(1.0, 2, 5, kind=kind, warmup_epochs=2, final=0.5)
    assert [schedule(step) for step in range(10)] == pytest.approx([step / 10 for step in range(10)])
    assert math.isfinite(schedule(10))


def test_the_slow_start_falls_by_factors() -> None:
    schedule = make(kind="rmsprop-hybrid")
    rates = {
        0: 0.4,
        279: 0.4,
        280: 0.06,
        489: 0.06,
        490: 0.008,
        594: 0.008,
        595: 0.0008,
        629: 0.0008,
        10**9: 0.0008,
    }
    assert {step: schedule(step) for step in rates} == pytest.approx(rates)
    own = make(kind="rmsprop-hybrid", milestones=(2,), factors=(1.0, 0.25))
    assert [own(13), own(14)] == pytest.approx([0.8, 0.2])


def test_rmsprop_fades_smoothly_around_its_center() -> None:
    schedule = make(steps_per_epoch=1000, kind="rmsprop-hybrid", rmsprop_center=4, rmsprop_period=2)
    share = schedule.rmsprop_share
    assert share(0) == pytest.approx(1 - math.exp(-4) / 2)
    assert share(2000) == pytest.approx(1 - math.exp(-2) / 2)
    assert share(4000) == pytest.approx(0.5)
    assert share(4500) == pytest.approx(0.25)
    assert share(5000) == share(9999) == 0
    slopes = [share(step + 1) - share(step) for step in range(5000)]
    assert max(slopes) < 0
    assert max(abs(after - before) for before, after in pairwise(slopes)) < 1e-6
    assert make(kind="step").rmsprop_share(0) == 0
    assert make(kind="step").rmsprop_lr is None


recipes = st.builds(
    ScheduleRecipe,
    kind=st.sampled_from(["step", "cosine", "polynomial"]),
    warmup_epochs=st.floats(0, 3),
    warmup_start=st.floats(0, 1),
    milestones=st.lists(st.floats(3, 12), max_size=4, unique=True).map(lambda m: tuple(sorted(m))),
    gamma=st.floats(0, 1),
    power=st.floats(0.5, 3),
    final=st.floats(0, 1),
)
lengths = {
    "epochs": st.integers(3, 10),
    "steps_per_epoch": st.integers(1, 30),
    "peak_lr": st.floats(0.001, 30),
}


@given(recipes, lengths["peak_lr"], lengths["epochs"], lengths["steps_per_epoch"])
def test_rises_in_the_warm_up_then_falls_and_stays_in_range(
    recipe: ScheduleRecipe, peak_lr: float, epochs: int, steps_per_epoch: int
) -> None:
    schedule = make_schedule(recipe, peak_lr, epochs, steps_per_epoch)
    num_warmup_steps = round(recipe.warmup_epochs * steps_per_epoch)
    rates = [schedule(step) for step in range(epochs * steps_per_epoch + 3)]
    tolerance = 1e-9 * peak_lr
    assert all(-tolerance <= rate <= peak_lr + tolerance for rate in rates)
    for step, (rate, following) in enumerate(pairwise(rates)):
        if step + 1 < num_warmup_steps:
            assert following >= rate - tolerance
        elif step >= num_warmup_steps:
            assert following <= rate + tolerance
    assert rates[-1] == rates[-2] == rates[-3]


@given(recipes, lengths["peak_lr"], lengths["epochs"], lengths["steps_per_epoch"], st.data())
def test_equals_the_formula_at_any_step(
    recipe: ScheduleRecipe, peak_lr: float, epochs: int, steps_per_epoch: int, data: st.DataObject
) -> None:
    num_steps = epochs * steps_per_epoch
    warmup = round(recipe.warmup_epochs * steps_per_epoch)
    step = data.draw(st.integers(0, num_steps - 1))
    if step < warmup:
        expected = recipe.warmup_start * (1 - step / warmup) + step / warmup
    elif recipe.kind == "step":
        expected = 1.0
        for milestone in recipe.milestones:
            if round(milestone * steps_per_epoch) <= step:
                expected *= recipe.gamma
    else:
        left = (num_steps - step) / (num_steps - warmup)
        shape = math.sin(math.pi / 2 * left) ** 2 if recipe.kind == "cosine" else left**recipe.power
        expected = recipe.final * (1 - shape) + shape
    rate = make_schedule(recipe, peak_lr, epochs, steps_per_epoch)(step)
    assert rate == pytest.approx(peak_lr * expected, rel=1e-9, abs=1e-12)
