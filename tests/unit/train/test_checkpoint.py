import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ddltrain.errors import CheckpointError
from ddltrain.train import checkpoint
from ddltrain.train.checkpoint import (
    checkpoint_path,
    parse_checkpoint,
    read_checkpoint,
    read_newest,
    save_checkpoint,
    steps_of,
)


def state(step: int) -> dict[str, object]:
    others = {
        "optimizer": {},
        "statistics": {},
        "position": {},
        "world_size": 1,
        "global_batch": 1,
        "recipe": "",
    }
    return {
        "model": {"w": torch.full((100,), float(step))},
        "step": step,
        "classes": [],
        "fingerprint": "",
        **others,
    }


def save(folder: Path, *steps: int, keep: int = 3, best: int | None = None) -> None:
    for step in steps:
        save_checkpoint(folder, state(step), step, keep, best)


def newest_step(folder: Path, warnings: list[str]) -> int:
    data = read_newest(folder, warnings.append)
    assert data is not None
    return int(parse_checkpoint(data, "it")["step"])


def test_the_last_ones_and_the_best_are_kept(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3, 4, 5, 6, keep=2, best=1)
    assert steps_of(tmp_path) == [6, 5, 1]
    assert (tmp_path / "best.pt").resolve() == checkpoint_path(tmp_path.resolve(), 1)
    assert parse_checkpoint(read_checkpoint(tmp_path / "best.pt"), "it")["step"] == 1
    save(tmp_path, 7, keep=2, best=7)
    assert steps_of(tmp_path) == [7, 6]
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".sha256") == [
        "step-00000006.pt.sha256",
        "step-00000007.pt.sha256",
    ]


def test_a_checkpoint_loads_without_running_code_and_its_digest_is_what_sha256sum_reads(
    tmp_path: Path,
) -> None:
    save(tmp_path, 3)
    assert torch.load(checkpoint_path(tmp_path, 3), weights_only=True)["step"] == 3
    subprocess.run(
        ["sha256sum", "--check", "step-00000003.pt.sha256"],
        cwd=tmp_path,
        check=True,
        stdout=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("place", [0, 100, 700, -1])
def test_a_flipped_bit_is_found_and_the_one_before_is_used(tmp_path: Path, place: int) -> None:
    save(tmp_path, 1, 2)
    path = checkpoint_path(tmp_path, 2)
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    warnings: list[str] = []
    assert newest_step(tmp_path, warnings) == 1
    assert len(warnings) == 1
    assert "step-00000002.pt is damaged" in warnings[0]


@pytest.mark.parametrize("size", [0, 10, 1000])
def test_a_cut_file_is_found_also_without_its_digest(tmp_path: Path, size: int) -> None:
    save(tmp_path, 1, 2)
    os.truncate(checkpoint_path(tmp_path, 2), size)
    (tmp_path / "step-00000002.pt.sha256").unlink()
    assert newest_step(tmp_path, []) == 1


def test_all_damaged_is_an_error_and_none_is_not(tmp_path: Path) -> None:
    assert read_newest(tmp_path, print) is None
    save(tmp_path, 1)
    checkpoint_path(tmp_path, 1).write_bytes(b"no")
    with pytest.raises(CheckpointError, match="every checkpoint in"):
        read_newest(tmp_path, lambda _: None)


def test_files_of_others_are_refused_by_name(tmp_path: Path) -> None:
    torch.save({"layer.weight": torch.zeros(3)}, tmp_path / "other.pt")
    with pytest.raises(
        CheckpointError, match=r"other\.pt is not a checkpoint of ddltrain; .* model\.weights="
    ):
        read_checkpoint(tmp_path / "other.pt")
    torch.save({"format": 99, "model": {}}, tmp_path / "future.pt")
    with pytest.raises(CheckpointError, match=r"future\.pt has format 99"):
        read_checkpoint(tmp_path / "future.pt")
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        read_checkpoint(tmp_path / "none.pt")


def test_a_failed_write_leaves_the_older_ones_and_no_fragment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, 2)
    before = sorted(path.name for path in tmp_path.iterdir())

    def no_room(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", no_room)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert newest_step(tmp_path, []) == 2


def test_checkpoints_of_a_future_that_was_left_go_with_the_next_save(tmp_path: Path) -> None:
    save(tmp_path, 15, 45, keep=9)
    checkpoint_path(tmp_path, 45).write_bytes(b"damaged")
    save(tmp_path, 23, keep=1)
    assert steps_of(tmp_path) == [23]


def test_writing_a_step_anew_never_leaves_it_without_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 5)

    def write_whole(path: Path, data: bytes | memoryview) -> None:
        if path.suffix == ".pt":
            raise OSError(28, "No space left on device")
        whole(path, data)

    whole = checkpoint.write_whole
    monkeypatch.setattr(checkpoint, "write_whole", write_whole)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(tmp_path, {**state(5), "step": 6}, 5, 3, None)
    assert newest_step(tmp_path, []) == 5
    monkeypatch.undo()
    save_checkpoint(tmp_path, {**state(5), "step": 6}, 5, 3, None)
    assert newest_step(tmp_path, []) == 6
    assert len((tmp_path / "step-00000005.pt.sha256").read_text().splitlines()) == 1


def test_a_checkpoint_without_all_its_parts_is_refused_by_name(tmp_path: Path) -> None:
    torch.save({"format": 1, "model": {}}, tmp_path / "half.pt")
    with pytest.raises(CheckpointError, match=r"half\.pt lacks classes, fingerprint"):
        read_checkpoint(tmp_path / "half.pt")


WRITER = """
import sys, torch
from pathlib import Path
from ddltrain.train.checkpoint import save_checkpoint
print("ready", flush=True)
step = int(sys.argv[2])
while True:
    step += 1
    state = dict.fromkeys("optimizer statistics position world_size global_batch recipe classes fingerprint".split())
    state |= {"model": {"w": torch.full((200_000,), float(step))}, "step": step}
    save_checkpoint(Path(sys.argv[1]), state, step, 2, None)
    print(step, flush=True)
"""


def test_a_process_killed_while_it_saves_loses_nothing_that_was_saved(tmp_path: Path) -> None:
    saved = 0
    for wait_steps in (1, 2, 4, 7):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(saved)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(wait_steps):
            saved = int(process.stdout.readline())
        process.kill()  # somewhere in the next save
        rest = process.communicate()[0].split()
        saved = int(rest[-1]) if rest else saved
        warnings: list[str] = []
        found = newest_step(tmp_path, warnings)
        assert warnings == []
        assert found in (saved, saved + 1)  # saved + 1: killed before it could say so
        saved = found
