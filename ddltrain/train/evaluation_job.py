"""Evaluating a saved model: from a run folder or a checkpoint to a table and a JSON file."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from ddltrain.comm.engine import Engine
from ddltrain.comm.stall import StallWatch
from ddltrain.comm.world import World, agreed
from ddltrain.errors import EXIT_STOPPED, CheckpointError, DataError, RunError
from ddltrain.input.store import Dataset
from ddltrain.recipe import Recipe, parse_recipe
from ddltrain.train.checkpoint import parse_checkpoint, read_checkpoint, read_newest, weights_in, write_whole
from ddltrain.train.evaluate import Evaluation, evaluate
from ddltrain.train.inputs import Normalizer
from ddltrain.train.precision import check_precision
from ddltrain.train.run_folder import CHECKPOINT_FOLDER
from ddltrain.train.setup import build_checked_model, choose_device, make_eval_loader, open_data, set_threads
from ddltrain.train.stop import StopRequest


@dataclass(frozen=True)
class EvaluationJob:
    """What to evaluate, on what, and where the figures go.

    `takes_average` asks for the average of the weights that the checkpoint holds (`train.ema`) instead of the weights.
    """

    model: Path
    overrides: Sequence[str]
    split: str
    json_file: Path | None
    takes_average: bool = False

    def check(self) -> None:
        """All that can be checked before any rank starts. Raises a DdltrainError for what a user must mend."""
        self._open(parse_checkpoint(self._read(lambda _: None), str(self.model)))

    def run(self, world: World, console: Console, should_stop: StopRequest) -> int:
        """Evaluate on all ranks of the world. Collective; rank 0 reads the checkpoint.

        Returns:
            The exit status: 0, or EXIT_STOPPED after a signal.

        Raises:
            DdltrainError: what a user must mend, the same on all ranks.
        """
        with agreed(world):
            data = self._read(console.print) if world.rank == 0 else None
        engine = Engine(world)
        data = engine.broadcast_bytes(data, world)
        with agreed(world):
            assert data is not None
            state = parse_checkpoint(data, str(self.model))
            recipe, dataset = self._open(state)
            device = choose_device(recipe.train.device, world)
            check_precision(recipe.train.precision, device)
            weights = weights_in(state, str(self.model), self.takes_average)
            model = _build(recipe, state, weights, device, str(self.model))
        store = dataset.splits[self.split]
        normalize = Normalizer(recipe.data, device, recipe.train.channels_last)
        with (
            StallWatch(world, recipe.comm.stall_report_s, recipe.comm.timeout_s) as watch,
            make_eval_loader(recipe, store, world, set_threads(recipe, world), device) as loader,
        ):
            watch.engine = engine
            evaluation = evaluate(
                model, loader, store.labels, normalize, engine, recipe.train.precision, should_stop
            )
        with agreed(world):
            if world.rank == 0:
                self._show(evaluation, state, dataset, console)
        return EXIT_STOPPED if evaluation is None else 0

    def _read(self, warn: Callable[[str], None]) -> bytes:
        """The bytes of the checkpoint that the user named."""
        if not self.model.is_dir():
            return read_checkpoint(self.model)
        inside = self.model / CHECKPOINT_FOLDER
        data = read_newest(inside if inside.is_dir() else self.model, warn)
        if data is None:
            raise CheckpointError(
                f"no checkpoint in {self.model}; name a run folder or a checkpoint, such as runs/NAME or "
                "runs/NAME/checkpoints/best.pt"
            )
        return data

    def _open(self, state: dict[str, Any]) -> tuple[Recipe, Dataset]:
        """The recipe in a checkpoint, with the overrides, and the data set to evaluate on."""
        weights_in(state, str(self.model), self.takes_average)
        recipe = parse_recipe(state["recipe"], f"the recipe in {self.model}", self.overrides)
        try:
            dataset = open_data(recipe)
        except DataError as error:
            raise DataError(f"{error}; or name the place of the data by data=PATH") from None
        if self.json_file and not os.access(self.json_file.absolute().parent, os.W_OK):
            raise RunError(f"cannot write {self.json_file}: no such folder, or no permission")
        if list(dataset.classes) != state["classes"]:
            trained = set(state["classes"])
            others = [name for name in dataset.classes if name not in trained]
            what = f"it does not know {', '.join(others[:3])}" if others else "some are missing"
            raise DataError(
                f"the {len(dataset.classes)} classes of {dataset.path} are not the {len(trained)} that {self.model} was trained "
                f"on ({what}); prepare the images with the training set's class folders"
            )
        return recipe, dataset

    def _show(
        self, evaluation: Evaluation | None, state: dict[str, Any], dataset: Dataset, console: Console
    ) -> None:
        """Print the table and write the JSON file."""
        if evaluation is None:
            console.print("stopped before the end; there is no result")
            return
        position = state["position"]
        average = ", average of the weights" if self.takes_average else ""
        table = Table(title=f"{self.model} (epoch {position['epoch']}, step {position['step']}{average})")
        for heading in ("", "%", "correct", "images"):
            table.add_column(heading, justify="left" if heading == "" else "right")
        table.add_row("top-1", f"{evaluation.top1:.2f}", str(evaluation.correct1), str(evaluation.count))
        if len(dataset.classes) > 5:  # else it says nothing
            table.add_row("top-5", f"{evaluation.top5:.2f}", str(evaluation.correct5), str(evaluation.count))
        console.print(table)
        console.print(f"loss {evaluation.loss:.4f} on the {self.split} images of {dataset.path}")
        if self.json_file:
            figures = {
                **evaluation.figures(),
                "model": str(self.model),
                "data": str(dataset.path),
                "split": self.split,
                "ema": self.takes_average,
                "epoch": position["epoch"],
                "step": position["step"],
            }
            try:
                write_whole(self.json_file, json.dumps(figures, indent=2).encode() + b"\n")
            except OSError as error:
                raise RunError(f"cannot write {self.json_file}: {error.strerror}") from None


def _build(
    recipe: Recipe, state: dict[str, Any], weights: dict[str, Any], device: torch.device, name: str
) -> nn.Module:
    model = build_checked_model(recipe, len(state["classes"]))
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"{name} does not fit its recipe's model: {error}") from None
    layout = torch.channels_last if recipe.train.channels_last else torch.contiguous_format
    return model.to(device, memory_format=layout)  # type: ignore[call-overload,no-any-return]
