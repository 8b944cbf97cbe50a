"""A rank that is killed takes the job with it, and leaves nothing behind."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddltrain.comm.launch import find_mpiexec, mpiexec_command

TIMEOUT_S = 60

ALLREDUCES = """
import os, signal, torch
from ddltrain.comm.engine import Engine
from ddltrain.comm.world import start_world

world = start_world()
engine = Engine(world, ranks_per_host={ranks_per_host})
print("pid", os.getpid(), flush=True)
tensor = engine.allocate(8 << 20).view(torch.float32)
step = 0
while True:
    if step == 20 and world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    engine.allreduce_(tensor)
    step += 1
"""

EXCHANGES = """
import os, signal
from fake_source import FakeSource
from ddltrain.comm.world import start_world
from ddltrain.input.hosts import find_hosts
from ddltrain.input.memory import WholeSet
from ddltrain.input.order import StepPlan
from ddltrain.input.sharded import ShardedSet

world = start_world()
print("pid", os.getpid(), flush=True)
source, hosts, plan = FakeSource(1000, 50_000), find_hosts(world), StepPlan(1000, 4, 10, "keep")
memory = ShardedSet(source, hosts, plan, 1, ((0, 1, 2, 3),)) if {ranks_per_host} else WholeSet(source, hosts, plan, 1)
epoch = 0
while True:
    memory.open(epoch)
    memory.passed(13)
    world.comm.Barrier()
    if epoch == 3 and world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    epoch += 1
"""


def runs(pid: int) -> bool:
    """Whether a process still runs; one that only waits for its parent to take notice does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


@pytest.mark.parametrize("ranks_per_host", [0, 2], ids=["one host", "several hosts"])
@pytest.mark.parametrize("program", [ALLREDUCES, EXCHANGES], ids=["all-reduces", "exchanges"])
def test_the_job_ends_and_no_process_stays(program: str, ranks_per_host: int) -> None:
    mpiexec = find_mpiexec()
    version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False).stdout
    words, environment = mpiexec_command(mpiexec, version, 4)
    search_path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    done = subprocess.run(
        [*words, sys.executable, "-c", program.format(ranks_per_host=ranks_per_host)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=os.environ | environment | {"PYTHONPATH": search_path},
        check=False,
    )
    assert done.returncode != 0
    pids = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("pid ")]
    assert len(pids) == 4
    deadline = time.monotonic() + TIMEOUT_S
    while any(map(runs, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(runs, pids))
    others = "ddltrain-job-"  # of commands that run at the same time
    assert not [name for name in os.listdir("/dev/shm") if "ddltrain" in name and others not in name]
