"""Rules for a recipe that hang on several of its keys."""

from typing import TYPE_CHECKING

from ddltrain.errors import RecipeError

if TYPE_CHECKING:
    from ddltrain.recipe import Recipe

# What `schedule.kind = "rmsprop-hybrid"` takes where the recipe says nothing (Akiba et al. 2017).
SLOW_START_MILESTONES = (40.0, 70.0, 85.0)
SLOW_START_FACTORS = (0.5, 0.075, 0.01, 0.001)


def check_together(recipe: "Recipe", name: str) -> None:
    """Raises RecipeError where keys contradict each other; `name` says where the recipe comes from."""
    train, schedule, optim = recipe.train, recipe.schedule, recipe.optim
    if schedule.warmup_epochs > train.epochs:
        raise RecipeError(
            f"{name}: schedule.warmup_epochs = {schedule.warmup_epochs:g} is longer than train.epochs = {train.epochs}"
        )
    if optim.nesterov and optim.momentum == 0:
        raise RecipeError(
            f"{name}: optim.nesterov = true needs optim.momentum above 0; set optim.nesterov=false"
        )
    _check_hybrid(recipe, name)
    _check_sizes(recipe, name)
    _check_local(recipe, name)
    _check_error_feedback(recipe, name)


def _check_local(recipe: "Recipe", name: str) -> None:
    comm = recipe.comm
    if comm.local == "torch" and (comm.algorithm != "auto" or comm.check):
        key = "comm.check=true" if comm.check else f'comm.algorithm="{comm.algorithm}"'
        raise RecipeError(
            f'{name}: comm.local = "torch" sums in a way of its own; leave out {key}, or set comm.local="engine"'
        )


def _check_error_feedback(recipe: "Recipe", name: str) -> None:
    if not recipe.comm.error_feedback:
        return
    if recipe.comm.wire == "fp32":
        raise RecipeError(
            f'{name}: comm.error_feedback = true gives back what 16 bits round away; set comm.wire="bf16", or leave it out'
        )
    if recipe.train.precision == "fp16":
        raise RecipeError(
            f'{name}: comm.error_feedback = true cannot go with the changing loss scale of train.precision = "fp16"; '
            'set train.precision="bf16", or leave it out'
        )


def _check_hybrid(recipe: "Recipe", name: str) -> None:
    schedule, optim = recipe.schedule, recipe.optim
    if schedule.kind != "rmsprop-hybrid":
        if schedule.factors:
            raise RecipeError(
                f'{name}: schedule.factors is for schedule.kind = "rmsprop-hybrid"; with "{schedule.kind}" leave it out'
            )
        return
    if optim.kind != "sgd":
        raise RecipeError(
            f'{name}: schedule.kind = "rmsprop-hybrid" turns RMSprop into SGD; it needs optim.kind = "sgd", not "{optim.kind}"'
        )
    if schedule.warmup_epochs:
        raise RecipeError(
            f'{name}: schedule.kind = "rmsprop-hybrid" is a warm-up itself; set schedule.warmup_epochs=0'
        )
    given = bool(schedule.milestones) or bool(schedule.factors)
    if given and len(schedule.factors) != len(schedule.milestones) + 1:
        raise RecipeError(
            f"{name}: schedule.factors has {len(schedule.factors)} numbers for {len(schedule.milestones)} schedule.milestones; "
            "it takes one more than there are milestones, the first for the time before them"
        )


def _check_sizes(recipe: "Recipe", name: str) -> None:
    data = recipe.data
    largest = max((size for _, size in data.progressive_size), default=0)
    if largest > data.image_size:
        raise RecipeError(
            f"{name}: data.progressive_size has {largest}, more than data.image_size = {data.image_size} that images are decoded at; "
            f"set data.image_size={largest}"
        )
