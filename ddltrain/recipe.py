"""Recipes: what to train, on what, and how, as frozen dataclasses read from TOML.

A recipe file has one table per section below. It is checked strictly: an unknown key names the nearest known one, a wrong value names
file, key, value and range. The command line overrides single values with ``section.key=value``; ``data=PATH`` is short for
``data.path=PATH``.
"""

import dataclasses
import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import tomli_w

from ddltrain.errors import RecipeError
from ddltrain.ranges import (
    ANY,
    NOT_EMPTY,
    Range,
    above,
    at_least,
    auto_or_count,
    below_one,
    between,
    check_value,
    fractions,
    key,
    one_of,
    randaugment,
    rising,
    sizes_by_epoch,
    three,
)
from ddltrain.recipe_rules import check_together


@dataclass(frozen=True)
class ModelRecipe:
    """What to train. `name` is a built-in network or ``path/to/file.py:function`` of the user's own."""

    name: str = key(NOT_EMPTY)
    zero_init_residual: bool = key(ANY, False)
    weights: str = key(ANY, "")


@dataclass(frozen=True)
class DataRecipe:
    """What to train on, and how images become the network's input."""

    path: str = key(ANY, "")
    image_size: int = key(between(1, 4096), 224)
    train_crop: str = key(one_of("random-resized", "pad", "center"), "random-resized")
    crop_scale: tuple[float, ...] = key(rising(2, 0.001, 1.0), (0.08, 1.0))
    crop_ratio: tuple[float, ...] = key(rising(2, 0.01, 100.0), (0.75, 1.3333333333333333))
    crop_padding: int = key(between(0, 1024), 4)
    flip: bool = key(ANY, True)
    eval_crop: float = key(between(0.1, 1), 0.875)
    decode: str = key(one_of("fast", "exact"), "fast")
    mean: tuple[float, ...] = key(three(above_zero=False), (0.485, 0.456, 0.406))
    std: tuple[float, ...] = key(three(above_zero=True), (0.229, 0.224, 0.225))
    progressive_size: tuple[tuple[int, int], ...] = key(sizes_by_epoch(), ())
    color_jitter: float = key(below_one(), 0.0)
    lighting: float = key(between(0, 10), 0.0)
    randaugment: tuple[int, ...] = key(randaugment(), ())
    mixup: float = key(between(0, 100), 0.0)
    cutmix: float = key(between(0, 100), 0.0)
    last_batch: str = key(one_of("keep", "drop"), "keep")
    groups: int | str = key(auto_or_count(), "auto")
    threads: int = key(between(0, 1024), 0)


@dataclass(frozen=True)
class TrainRecipe:
    """How long, with what batch and in what precision."""

    epochs: int = key(between(1, 100000))
    batch_per_rank: int = key(between(1, 1 << 20))
    seed: int = key(between(0, (1 << 32) - 1), 0)
    label_smoothing: float = key(below_one(), 0.0)
    accumulate: int = key(between(1, 1 << 20), 1)
    global_batch: int = key(between(0, 1 << 40), 0)
    precision: str = key(one_of("fp32", "bf16", "fp16"), "fp32")
    ema: float = key(below_one(), 0.0)
    compile: bool = key(ANY, False)
    channels_last: bool = key(ANY, True)
    device: str = key(one_of("auto", "cpu", "cuda"), "auto")
    threads: int = key(between(0, 4096), 0)
    not_finite: str = key(one_of("stop", "skip"), "stop")

    def global_batch_on(self, num_ranks: int) -> int:
        """Images of a step on so many ranks."""
        return self.global_batch or num_ranks * self.batch_per_rank * self.accumulate


@dataclass(frozen=True)
class OptimRecipe:
    """The optimizer. Peak learning rate = lr_base * global_batch / lr_base_batch (the linear scaling rule, Goyal et al. 2017)."""

    lr_base: float = key(above(0))
    lr_base_batch: int = key(at_least(1), 256)
    kind: str = key(one_of("sgd", "lars"), "sgd")
    momentum: float = key(below_one(), 0.9)
    nesterov: bool = key(ANY, True)
    momentum_correction: bool = key(ANY, True)
    weight_decay: float = key(at_least(0), 1e-4)
    trust: float = key(above(0), 0.001)
    clip_norm: float = key(at_least(0), 0.0)


@dataclass(frozen=True)
class ScheduleRecipe:
    """The learning rate over the run: linear warm-up, then a decay."""

    kind: str = key(one_of("step", "cosine", "polynomial", "rmsprop-hybrid"))
    warmup_epochs: float = key(at_least(0), 0.0)
    warmup_start: float = key(between(0, 1), 0.0)
    milestones: tuple[float, ...] = key(rising(None, 0, 100000), ())
    gamma: float = key(between(0, 1), 0.1)
    power: float = key(above(0), 2.0)
    final: float = key(between(0, 1), 0.0)
    factors: tuple[float, ...] = key(fractions(), ())
    rmsprop_lr: float = key(above(0), 3e-4)
    rmsprop_center: float = key(at_least(0), 10.0)
    rmsprop_period: float = key(above(0), 5.0)


@dataclass(frozen=True)
class BnRecipe:
    """Batch normalization: `group` consecutive ranks normalize together."""

    group: int = key(between(1, 1 << 20), 1)


@dataclass(frozen=True)
class CheckpointRecipe:
    """When to save, and how many to keep besides the best."""

    keep: int = key(at_least(1), 3)
    every_epochs: int = key(at_least(1), 1)
    every_steps: int = key(at_least(0), 0)


@dataclass(frozen=True)
class CommRecipe:
    """How gradients travel."""

    bucket_mib: float = key(above(0), 25.0)
    algorithm: str = key(
        one_of(
            "auto",
            "mpi",
            "shared_memory",
            "hierarchical",
            "ring",
            "multiring",
            "multicolor",
            "torus2d",
            "halving_doubling",
        ),
        "auto",
    )
    local: str = key(one_of("auto", "engine", "torch"), "auto")
    wire: str = key(one_of("fp32", "bf16", "fp16"), "fp32")
    error_feedback: bool = key(ANY, False)
    timeout_s: float = key(above(0), 600.0)
    stall_report_s: float = key(above(0), 60.0)
    check: bool = key(ANY, False)
    verify: bool = key(ANY, False)


@dataclass(frozen=True)
class LogRecipe:
    """How often a row goes to the log."""

    every_steps: int = key(at_least(1), 20)


@dataclass(frozen=True)
class Recipe:
    """All that determines a run, apart from the number of ranks."""

    model: ModelRecipe
    data: DataRecipe
    train: TrainRecipe
    optim: OptimRecipe
    schedule: ScheduleRecipe
    bn: BnRecipe
    checkpoint: CheckpointRecipe
    comm: CommRecipe
    log: LogRecipe

    def to_toml(self) -> str:
        """The resolved recipe; reading it again gives an equal recipe."""
        return tomli_w.dumps(dataclasses.asdict(self))


def read_recipe(path: Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read a recipe file and apply ``section.key=value`` overrides in order.

    Raises:
        RecipeError: no such file, not TOML, unknown or missing key, wrong type, value out of range.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError):
        raise RecipeError(f"no recipe at {path}{_nearest_recipe(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot read the recipe {path}: {error}") from None
    return _with_absolute_paths(parse_recipe(text, str(path), overrides))


def _with_absolute_paths(recipe: Recipe) -> Recipe:
    """So that a stored recipe means the same from every folder."""
    data, model = recipe.data, recipe.model
    if data.path:
        data = dataclasses.replace(data, path=os.path.abspath(data.path))
    if ":" in model.name:  # path/to/file.py:function
        model = dataclasses.replace(model, name=os.path.abspath(model.name))
    if model.weights:
        model = dataclasses.replace(model, weights=os.path.abspath(model.weights))
    return dataclasses.replace(recipe, data=data, model=model)


def _nearest_recipe(path: Path) -> str:
    if "=" in path.name:
        return "; name a recipe before the values, such as models/resnet18/imagenette-128.toml"
    folder = path if path.is_dir() else path.parent
    recipes = {file.name: str(file) for file in sorted(folder.glob("*.toml"))}
    if path.is_dir() and recipes:
        return f", a folder; it holds {', '.join(recipes.values())}"
    nearest = difflib.get_close_matches(path.name, recipes, n=1, cutoff=0.4)
    return (
        f"; did you mean {recipes[nearest[0]]}?" if nearest else "; recipes are *.toml files, see models/*/"
    )


def parse_recipe(text: str, name: str, overrides: Iterable[str] = ()) -> Recipe:
    """The same for the text of a recipe; `name` says in errors where it comes from."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"cannot read the recipe {name}: {error}") from None
    origin: dict[str, str] = {}
    for override in overrides:
        _apply_override(tables, override, origin)
    recipe = _build_recipe(tables, name, origin)
    check_together(recipe, name)
    return recipe


def _apply_override(tables: dict[str, Any], override: str, origin: dict[str, str]) -> None:
    name, equals, text = override.partition("=")
    name = "data.path" if name == "data" else name
    section, dot, entry = name.partition(".")
    if not (equals and dot and section and entry):
        raise RecipeError(
            f'override "{override}" is not of the form section.key=value, such as train.epochs=3'
        )
    table = tables.setdefault(section, {})
    if isinstance(table, dict):  # else the section check reports it
        table[entry] = _parse_value(text, _type_of(section, entry))
    origin[name] = "command line"


def _type_of(section: str, entry: str) -> Any:
    """The type of a key; None where there is no such key."""
    kind = get_type_hints(Recipe).get(section)
    return get_type_hints(kind).get(entry) if kind else None


def _parse_value(text: str, kind: Any) -> Any:
    """What a user typed for a key: texts need no quotes, all else is a TOML value (or a number as Python writes it)."""
    if kind is str and text[:1] not in ("'", '"'):
        return text
    if kind is float:
        try:
            return float(text)
        except ValueError:
            pass  # the type check reports it
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _build_recipe(tables: Mapping[str, Any], file: str, origin: Mapping[str, str]) -> Recipe:
    sections = get_type_hints(Recipe)
    _refuse_unknown(tables, sections, "section", file, origin)
    return Recipe(
        **{name: _build_section(kind, name, tables, file, origin) for name, kind in sections.items()}
    )


def _build_section(
    kind: Any, section: str, tables: Mapping[str, Any], file: str, origin: Mapping[str, str]
) -> Any:
    table = tables.get(section, {})
    if not isinstance(table, dict):
        raise RecipeError(
            f"{file}: {section} is a table of keys, not a value; write [{section}] on a line of its own"
        )
    types = get_type_hints(kind)
    _refuse_unknown(
        {f"{section}.{name}": None for name in table},
        {f"{section}.{name}": None for name in types},
        "key",
        file,
        origin,
    )
    values = {}
    for entry in dataclasses.fields(kind):
        name = f"{section}.{entry.name}"
        where = origin.get(name, file)
        allowed: Range = entry.metadata["range"]
        if entry.name in table:
            values[entry.name] = check_value(
                table[entry.name], types[entry.name], allowed, f"{where}: {name}"
            )
        elif entry.default is dataclasses.MISSING:
            raise RecipeError(f"{file}: {name} is missing; give it a value ({allowed.text})")
    return kind(**values)


def _refuse_unknown(
    names: Iterable[str], known: Mapping[str, Any], what: str, file: str, origin: Mapping[str, str]
) -> None:
    for name in names:
        if name not in known:
            where = next((origin[entry] for entry in origin if entry.startswith(name)), file)
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
            raise RecipeError(f'{where}: unknown {what} "{name}"; the nearest known one is "{nearest}"')
