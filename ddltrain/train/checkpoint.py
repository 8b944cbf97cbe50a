"""Checkpoints: whole or absent, checked when read, and free of code.

    checkpoints/step-00000780.pt          tensors and plain values, loads with torch.load(weights_only=True)
    checkpoints/step-00000780.pt.sha256   its digest, as `sha256sum -c` reads it
    checkpoints/best.pt                   a link to the one with the best validation accuracy

A file is written beside its place, synced and renamed, its digest first: a name that exists stands for a whole file.
"""

import hashlib
import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ddltrain.errors import CheckpointError

FORMAT = 1
_KEYS = {
    "model",
    "optimizer",
    "statistics",
    "position",
    "world_size",
    "global_batch",
    "recipe",
    "classes",
    "fingerprint",
}
_NAME = re.compile(r"step-(\d+)\.pt")


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return folder / f"step-{step:08d}.pt"


def save_checkpoint(folder: Path, state: dict[str, Any], step: int, keep: int, best_step: int | None) -> Path:
    """Write a checkpoint, point best.pt to that of `best_step`, and delete all but the last `keep` and the best.

    Raises:
        OSError: it could not be written; the older ones are untouched.
    """
    folder.mkdir(exist_ok=True)
    for leftover in folder.glob("*.tmp"):  # of a process that was killed while it wrote
        leftover.unlink()
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **state}, buffer)
    data = buffer.getbuffer()
    path = checkpoint_path(folder, step)
    _write_with_digest(path, data)
    if best_step is not None and checkpoint_path(folder, best_step).exists():
        link = folder / "best.pt.tmp"
        link.symlink_to(checkpoint_path(folder, best_step).name)
        link.replace(folder / "best.pt")
    # Newer ones are damaged, or of a future that this run has left: it went on from before them.
    kept = {best_step, *[old for old in steps_of(folder) if old <= step][:keep]}
    for old_step in set(steps_of(folder)) - kept:
        old = checkpoint_path(folder, old_step)
        old.unlink()
        _digest_path(old).unlink(missing_ok=True)
    return path


def _write_with_digest(path: Path, data: memoryview) -> None:
    """The digest goes first. Where a file is written anew, both digests hold until the new file is in its place."""
    digest_path, line = _digest_path(path), f"{hashlib.sha256(data).hexdigest()}  {path.name}\n".encode()
    before = digest_path.read_bytes() if path.exists() and digest_path.exists() else b""
    write_whole(digest_path, before + line)
    try:
        write_whole(path, data)
    except OSError:
        if not path.exists():
            digest_path.unlink()
        raise
    if before:
        write_whole(digest_path, line)


def write_whole(path: Path, data: bytes | memoryview) -> None:
    """Write a file so that at every moment, also after a crash, `path` is absent, its old self or whole."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def steps_of(folder: Path) -> list[int]:
    """The steps that have a checkpoint, newest first."""
    matches = (_NAME.fullmatch(path.name) for path in folder.glob("step-*.pt"))
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def read_newest(folder: Path, warn: Callable[[str], None]) -> bytes | None:
    """The bytes of the newest checkpoint that is whole; None where there is no checkpoint.

    Args:
        warn: told of each damaged one that is passed over.

    Raises:
        CheckpointError: there are checkpoints, and all are damaged.
    """
    steps = steps_of(folder)
    for step in steps:
        try:
            return read_checkpoint(checkpoint_path(folder, step))
        except CheckpointError as error:
            warn(f"{error}; trying the one before it")
    if steps:
        raise CheckpointError(f"every checkpoint in {folder} is damaged; start a new run, or put one back")
    return None


def read_checkpoint(path: Path) -> bytes:
    """The bytes of one checkpoint, checked against its digest where it has one.

    Raises:
        CheckpointError: no such file, unreadable, or damaged.
    """
    real = path.resolve()  # best.pt is a link; the digest lies beside the file it points to
    try:
        data = real.read_bytes()
        recorded = _digest_path(real).read_text().split()[::2] if _digest_path(real).exists() else None
    except FileNotFoundError:
        raise CheckpointError(f"no checkpoint at {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"cannot read the checkpoint {path}: {error}") from None
    if recorded is not None and hashlib.sha256(data).hexdigest() not in recorded:
        raise CheckpointError(f"the checkpoint {path} is damaged: its SHA-256 is not the recorded one")
    parse_checkpoint(data, str(path))
    return data


def parse_checkpoint(data: bytes, name: str) -> dict[str, Any]:
    """The state in a checkpoint's bytes; no code in it is run.

    Raises:
        CheckpointError: not a checkpoint of ours, or of a version unknown here.
    """
    try:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load lets many kinds through when it meets foreign bytes
        raise CheckpointError(
            f"{name} is damaged, or is no checkpoint of ddltrain; name a run folder, or a file such as runs/NAME/checkpoints/best.pt"
        ) from error
    if not isinstance(state, dict) or "format" not in state or "model" not in state:
        raise CheckpointError(
            f"{name} is not a checkpoint of ddltrain; to start from its weights use model.weights={name}"
        )
    if state["format"] == FORMAT and not state.keys() >= _KEYS:
        raise CheckpointError(
            f"the checkpoint {name} lacks {', '.join(sorted(_KEYS - state.keys()))}; use another one"
        )
    if state["format"] != FORMAT:
        raise CheckpointError(
            f"the checkpoint {name} has format {state['format']}; this version reads format {FORMAT}"
        )
    return state


def weights_in(state: dict[str, Any], name: str, takes_average: bool) -> dict[str, Any]:
    """The model's state dict in a checkpoint, or the average of the weights.

    Raises:
        CheckpointError: the run kept no average.
    """
    if takes_average and "ema" not in state:
        raise CheckpointError(
            f"{name} holds no average of the weights; train with train.ema=0.999, or leave --ema out"
        )
    weights: dict[str, Any] = state["ema" if takes_average else "model"]
    return weights


def _digest_path(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")
