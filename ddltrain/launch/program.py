"""The command of ours that a job runs, as far as launch must understand it."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddltrain.errors import LaunchError
from ddltrain.recipe import Recipe, read_recipe

COMMANDS = ("train", "evaluate", "bench-allreduce", "doctor")


@dataclass(frozen=True)
class Program:
    """``COMMAND WORDS...``, checked.

    Attributes:
        data: the data set that every host must have; "" where none is known.
        recipe: of `train`.
    """

    words: tuple[str, ...]
    data: str = ""
    recipe: Recipe | None = None

    def command(self) -> list[str]:
        """What each rank runs."""
        return [sys.executable, "-m", "ddltrain", *self.words]

    def going_on(self, global_batch: int) -> "Program":
        """The same run from its last checkpoint, on any number of ranks."""
        added = (f"train.global_batch={global_batch}", "--resume")
        return replace(self, words=(*(word for word in self.words if word not in added), *added))


def parse_program(words: Sequence[str]) -> Program:
    """Understand what stands behind ``--``.

    Raises:
        LaunchError: none of our commands, or it starts ranks itself.
        RecipeError: the recipe is wrong.
    """
    if not words or words[0] not in COMMANDS:
        raise LaunchError(
            f"behind -- stands what the ranks run: {', '.join(COMMANDS)}, such as `ddltrain launch --ranks 4 -- train RECIPE`"
        )
    if "--ranks" in words or any(word.startswith("--ranks=") for word in words):
        raise LaunchError("--ranks belongs before the --: launch starts the ranks")
    if words[0] != "train":
        data = next(
            (word.partition("=")[2] for word in words if word.startswith(("data=", "data.path="))), ""
        )
        return Program(tuple(words), data)
    return _parse_train(words)


def _parse_train(words: Sequence[str]) -> Program:
    from ddltrain.cli import train

    parser = argparse.ArgumentParser(prog="ddltrain train")
    train.add_arguments(parser)
    args, rest = parser.parse_known_args(words[1:])
    overrides = [*args.overrides, *(word for word in rest if "=" in word and not word.startswith("-"))]
    recipe = read_recipe(args.recipe, overrides)
    return Program(tuple(words), recipe.data.path, recipe)
