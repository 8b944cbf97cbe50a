"""Programs of users in which something bad happens, once, on one rank."""

# A network that does something bad, once, on one rank.
MODEL = """
import os, signal, time
from pathlib import Path

import torch
from mpi4py import MPI
from torch import nn

HERE = Path({folder!r})
RANK = MPI.COMM_WORLD.rank


def trouble(phase):
    if phase == {phase!r} and RANK == {culprit} and not (HERE / "fault").exists():
        (HERE / "fault").write_text(str(time.time()))
        {action}


def fill_disk():
    try:
        with (HERE / "run" / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError:
        pass


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        if {phase!r} == "construct":
            trouble("construct")
        trouble("differ")
        width = 33 if {phase!r} == "differ" and RANK == {culprit} else 32
        self.first, self.second = nn.Linear(192, width), nn.Linear(width, num_classes)
        self.num_steps = self.num_evaluations = 0

    def forward(self, images):
        if self.training:
            self.num_steps += 1
            (HERE / f"steps{{RANK}}").write_text(f"{{os.getpid()}} {{self.num_steps}}")
            time.sleep(0.02)
            if self.num_steps >= 5:
                trouble("forward")
            if self.num_steps in (5, 6):  # the second time when the cause is looked for
                trouble("nan")
                if {phase!r} == "nan" and RANK == {culprit}:
                    images = images * float("nan")
        else:
            self.num_evaluations += 1
            if self.num_evaluations > 1:
                trouble("evaluation")
        hidden = self.first(images.flatten(1))
        if hidden.requires_grad and self.num_steps >= 5:
            hidden.register_hook(lambda gradient: trouble("backward"))
        return self.second(torch.relu(hidden))

    def state_dict(self, *args, **kwargs):
        if self.num_steps >= 5:
            trouble("save")
        if self.num_steps >= 15:
            (HERE / "run" / "filler").unlink(missing_ok=True)
        return super().state_dict(*args, **kwargs)


def make(num_classes):
    return Net(num_classes)
"""

# Ranks that do not fit each other, below all our checks.
MISMATCH = """
import sys, torch
from ddltrain.cli.ranks import run_on_ranks
from ddltrain.comm.engine import Engine

def job(world, console):
    engine = Engine(world, timeout_s=8)
    tensors = {{name: engine.allocate(1 << 20).view(torch.float32) for name in ("a", "b")}}
    names = ["a", "b"]
    if world.rank == 1 and {what!r} == "order":
        names.reverse()
    for name in names:
        count = 1000 if world.rank == 1 and {what!r} == "sizes" else 1001
        engine.allreduce_(tensors[name][:count], algorithm={algorithm!r}, name=name)
    return 0

sys.exit(run_on_ranks(job))
"""
