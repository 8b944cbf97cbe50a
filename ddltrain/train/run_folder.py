"""The folder of a run: who may write into it, and what it says about the run.

runs/NAME/recipe.toml     the resolved recipe
         tuning.json      on several hosts: the quickest all-reduces
         run.json         versions, commit, ranks, command
         metrics.jsonl    figures while it trains; tensorboard/ the same for TensorBoard
         checkpoints/     see checkpoint.py
         report.html      the run to look at
         timeline.json    with --timeline: what each rank did when
"""

import fcntl
import json
import os
import platform
import shlex
import socket
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import torch
import torchvision

import ddltrain
from ddltrain.comm.report import LAUNCHER_VARIABLE
from ddltrain.errors import RecipeError, RunError
from ddltrain.recipe import Recipe, parse_recipe
from ddltrain.train.checkpoint import write_whole

RECIPE_FILE = "recipe.toml"
FACTS_FILE = "run.json"
CHECKPOINT_FOLDER = "checkpoints"
TUNING_FILE = "tuning.json"
_LOCK_FILE = ".lock"

# Keys that may change when a run goes on: they do not touch its numbers (but for error feedback, of which saves drop what it keeps),
# or are checked by what they point to.
_FREE_KEYS = (
    "data.path",
    "data.threads",
    "data.groups",
    "train.threads",
    "train.batch_per_rank",
    "train.accumulate",
    "train.global_batch",
    "checkpoint.",
    "comm.timeout_s",
    "comm.stall_report_s",
    "comm.check",
    "comm.verify",
    "log.",
)


def read_facts(run: Path) -> dict[str, Any]:
    """What run.json in a run folder holds; nothing where there is none.

    Raises:
        RunError: it is damaged.
    """
    path = run / FACTS_FILE
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise RunError(f"{path}: not valid JSON ({error}); delete the file to go on without it") from error
    if not isinstance(content, dict):
        raise RunError(f"{path}: holds no JSON object; delete the file to go on without it")
    return content


def changed_keys(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """The keys, "section.key: old -> new", in which two recipes differ and a run that goes on must not."""
    names = [f"{section}.{key}" for section in new for key in new[section]]
    values = [
        (name, _value(old, name), _value(new, name)) for name in names if not name.startswith(_FREE_KEYS)
    ]
    return [f"{name}: {before!r} -> {after!r}" for name, before, after in values if before != after]


def _value(recipe: dict[str, Any], name: str) -> Any:
    section, _, key = name.partition(".")
    return recipe.get(section, {}).get(key)


class RunFolder:
    """A run folder held by this process; nobody else writes into it until it is left. Use as a context manager."""

    def __init__(self, path: Path, recipe: Recipe, resume: bool) -> None:
        """Create the folder, or take it over to go on.

        Raises:
            RunError: in use, holds something else, holds a run and `resume` is not asked for, or holds a run of another recipe.
        """
        self.path = path
        self.checkpoints = path / CHECKPOINT_FOLDER
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(path)
            self._check(recipe, resume)
        except OSError as error:
            raise RunError(
                f"cannot use the run folder {path}: {error.strerror}; choose another with --run"
            ) from None

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()

    def write_facts(self, recipe: Recipe, facts: dict[str, Any]) -> None:
        """Store the recipe and the facts of the run.

        Raises:
            RunError: they cannot be written.
        """
        try:
            write_whole(self.path / FACTS_FILE, json.dumps(facts, indent=2).encode() + b"\n")
            write_whole(self.path / RECIPE_FILE, recipe.to_toml().encode())
        except OSError as error:
            raise RunError(f"cannot write into the run folder {self.path}: {error.strerror}") from None

    def _check(self, recipe: Recipe, resume: bool) -> None:
        stored = self.path / RECIPE_FILE
        if not stored.exists():
            ours = (_LOCK_FILE, FACTS_FILE, f"{FACTS_FILE}.tmp", f"{RECIPE_FILE}.tmp")
            others = [entry for entry in self.path.iterdir() if entry.name not in ours]
            if others:
                raise RunError(f"{self.path} holds other files and no run; choose another folder with --run")
            return
        if not resume:
            raise RunError(
                f"{self.path} holds a run already; go on with it by --resume, choose another folder with --run, or delete it"
            )
        try:
            # Not the tables as they are: a key that is newer than the run has its default there.
            before = parse_recipe(stored.read_text(), str(stored))
        except (RecipeError, UnicodeDecodeError) as error:
            raise RunError(
                f"{stored} is damaged, or of another version ({error}); put it back (every checkpoint holds a copy), or start a new "
                "run with --run"
            ) from None
        changes = changed_keys(tomllib.loads(before.to_toml()), tomllib.loads(recipe.to_toml()))
        if changes:
            raise RunError(
                f"{self.path} was started with another recipe ({'; '.join(changes)}); resume with the same one, or start a new run "
                "with --run FOLDER (model.weights=CHECKPOINT starts it from this one's weights)"
            )


def _lock(path: Path) -> TextIO:
    """A lock that ends with this process, however it ends."""
    file = (path / _LOCK_FILE).open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        owner = file.read().strip()
        file.close()
        raise RunError(
            f"the run folder {path} is in use ({owner}); wait for it, or choose another with --run"
        ) from None
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()
    return file


def run_facts(
    mpi_library: str, world_size: int, hosts: list[str], recipe: Recipe, dataset: dict[str, Any]
) -> dict[str, Any]:
    """What stands in run.json: enough to know, and to repeat, what was run."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _command(),
        "seed": recipe.train.seed,
        "ranks": world_size,
        "global_batch": recipe.train.global_batch_on(world_size),
        "hosts": hosts,
        **dataset,
        "ddltrain": ddltrain.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "mpi": mpi_library,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def _command() -> str:
    """What a user typed, whether the ranks were started by us or by mpiexec."""
    return os.environ.get(LAUNCHER_VARIABLE) or shlex.join(["ddltrain", *sys.argv[1:]])


def _commit() -> str:
    """The commit of the source this runs from, "+changes" where files differ from it; "" outside a checkout."""
    where = Path(ddltrain.__file__).parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+changes", "--exclude=*"],
            cwd=where,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return done.stdout.strip()
