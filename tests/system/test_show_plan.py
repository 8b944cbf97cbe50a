"""`ddltrain train --show-plan` tells how gradients are going to be summed, and does nothing else."""

from pathlib import Path

from conftest import RECIPE, Command


def test_each_bucket_has_a_line_and_nothing_is_written(
    command: Command, digits: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = ("train", RECIPE, f"data={digits}", "--run", run, "--ranks", 2, "--show-plan")
    done = command(*words, "comm.bucket_mib=0.25", "comm.wire=bf16")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    head = next(number for number, line in enumerate(lines) if line.split()[:2] == ["bucket", "size"])
    rows = [line.split() for line in lines[head + 1 :]]
    assert [int(row[0]) for row in rows] == list(range(7))
    assert all("shared_memory" in row for row in rows)
    # One sends nothing over a network; the last has the extras alone, and goes when backward is over.
    assert rows[-1][1:3] == ["12", "B"]
    assert [" in backward;" in line for line in lines[head + 1 :]] == [True] * 6 + [False]
    assert not run.exists()
    alone = command("train", RECIPE, f"data={digits}", "--run", run, "--show-plan")
    assert alone.returncode == 0, alone.stderr
    assert "nothing is sent: one rank" in alone.stdout
    wrong = command("train", RECIPE, f"data={digits}", "--run", run, "--show-plan", "comm.wire=int8")
    assert wrong.returncode == 2
    assert "comm.wire" in wrong.stderr
