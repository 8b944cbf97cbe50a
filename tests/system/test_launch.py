"""`ddltrain launch` and `doctor` as a user runs them: on this host, and on an emulated cluster that loses a host."""

import collections
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import fault_cases
import faults
import pytest
from conftest import RECIPE, REPOSITORY, Command

from ddltrain.comm.launch import find_mpiexec

WAIT_S = 200

# A network that writes down which pictures it is trained on: one line a step, a hash of each picture.
MODEL = """
import hashlib, os, time
from mpi4py import MPI
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.layer = nn.Linear(192, num_classes)
        self.file = open({file!r} + f".{{os.getpid()}}", "w")

    def forward(self, images):
        if self.training:
            names = [hashlib.sha256(image.numpy().tobytes()).hexdigest()[:16] for image in images]
            print(MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank, *names, file=self.file, flush=True)
            time.sleep(0.05)
        return self.layer(images.flatten(1))

def make(num_classes):
    return Net(num_classes)
"""
VALUES = (
    *(
        "model.name=net.py:make",
        "train.epochs=2",
        "train.batch_per_rank=16",
        "data.image_size=8",
        "data.eval_crop=1",
    ),
    *(
        "data.train_crop=center",
        "data.flip=false",
        "checkpoint.every_steps=5",
        "train.threads=1",
        "data.threads=1",
    ),
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Four hosts."""
    if os.geteuid() != 0:
        pytest.skip("only root can make an emulated cluster")
    try:
        faults.up(4)
    except subprocess.CalledProcessError:
        pytest.skip("no cluster can be made here")
    yield
    faults.down()


def test_the_command_is_shown_and_nothing_started(command: Command, digits: Path, tmp_path: Path) -> None:
    words = ("train", RECIPE, f"data={digits}", "--run", tmp_path / "run")
    done = command("launch", "--ranks", 3, "--dry-run", "--", *words)
    assert done.returncode == 0, done.stderr
    assert "clock      as here" in done.stderr
    shown = shlex.split(done.stdout)
    assert shown[0] == "env"
    assert shown[shown.index("-n") + 1] == "3"
    assert [str(word) for word in words] == shown[-len(words) :]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ranks", 2, "--", "trian", "x"), "behind -- stands"),
        (("--ranks", 2, "--", "train", RECIPE, "--ranks", 2), "--ranks belongs before the --"),
        (("--ranks", 2, "--", "train", RECIPE, "train.epoch=2"), "train.epochs"),
        (("--", "doctor"), "no hosts"),
        (("--ranks", 2, "--topology", "4x1x1", "--", "doctor"), "--topology 4x1x1"),
        (("--hosts", "a;b", "--", "doctor"), "such as node1:4"),
    ],
)
def test_slips_are_one_line(command: Command, words: tuple[object, ...], message: str) -> None:
    done = command("launch", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_hosts_that_do_not_fit_stop_the_job_before_its_start(command: Command, tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    agent.write_text(
        '#!/bin/sh\n[ "$1" = gone ] && { echo "no route to $1" >&2; exit 255; }\nexec sh -c "$2"\n'
    )
    agent.chmod(0o755)
    words = ("--hosts", "localhost:1,gone:1", "--agent", agent)
    done = command("launch", *words, "--", "train", RECIPE, f"data={tmp_path}/none")
    assert done.returncode == 2
    assert "no route to gone on gone" in done.stderr
    assert "no such folder" in done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        "error: the hosts do not fit (reached, data, see the table)"
    )
    assert done.stdout == ""


def test_doctor_on_one_rank_and_two(command: Command) -> None:
    done = command("doctor", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads(done.stdout)
    assert facts["extension"] == facts["mpi"] != ""
    assert facts["links"] == []
    done = command("doctor", "--ranks", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 -> 1" in done.stdout


def test_doctor_finds_a_foreign_mpiexec(command: Command, tmp_path: Path) -> None:
    foreign = tmp_path / "mpiexec"
    foreign.write_text("#!/bin/sh\necho HYDRA build details:\n")
    foreign.chmod(0o755)
    done = command("doctor", MPIEXEC=str(foreign))
    assert done.returncode == 1
    assert "PROBLEM: mpiexec belongs to MPICH" in done.stdout


# Stands in for Slurm on this host: reaches it, and starts ranks by mpiexec.
SRUN = """#!/bin/sh
unset SLURM_JOB_NODELIST SLURM_TASKS_PER_NODE
first=$1
while [ "${1#--}" != "$1" ]; do
  case "$1" in --ntasks=*) ranks=${1#--ntasks=} ;; esac
  shift
done
[ "$first" = --overlap ] && exec "$@"
exec MPIEXEC -n $ranks --map-by :OVERSUBSCRIBE --bind-to none "$@"
"""


def test_slurms_allocation_is_found(command: Command, tmp_path: Path) -> None:
    srun = tmp_path / "srun"
    srun.write_text(SRUN.replace("MPIEXEC", find_mpiexec()))
    srun.chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "localhost", "SLURM_TASKS_PER_NODE": "2"}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = command("launch", "--", "doctor", PATH=path, **slurm, **root)
    assert done.returncode == 0, done.stderr
    assert "looked at 1 host(s) with 2 rank(s)" in done.stderr
    assert "0 -> 1" in done.stdout


def test_a_signal_to_launch_saves_on_all_hosts(cluster: None, digits: Path, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MODEL.format(file=str(tmp_path / "seen")))
    words = ["launch", "--cluster", fault_cases.CLUSTER, "--max-restarts", "2", "--"]
    words += ["train", str(RECIPE), f"data={digits}", *VALUES, "--run", str(tmp_path / "run")]
    job = subprocess.Popen(
        [sys.executable, "-m", "ddltrain", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )
    _wait_for_rows(tmp_path, 8)
    job.terminate()
    output, _ = job.communicate(timeout=WAIT_S)
    assert job.returncode == 75, output
    assert "all is saved" in output
    assert "starting again" not in output


def test_a_job_goes_on_without_a_lost_host(
    cluster: None, command: Command, digits: Path, tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text(MODEL.format(file=str(tmp_path / "seen")))
    words = ["launch", "--cluster", fault_cases.CLUSTER, "--max-restarts", "2", "--min-ranks", "2", "--"]
    words += ["train", str(RECIPE), f"data={digits}", *VALUES, "--run", str(tmp_path / "run")]
    log = (tmp_path / "log").open("w+")
    job = subprocess.Popen(
        [sys.executable, "-m", "ddltrain", *words],
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )
    try:
        _wait_for_rows(tmp_path, 13)
        fault_cases.lose_host(2, tmp_path)
        assert job.wait(WAIT_S) == 0, (tmp_path / "log").read_text()
    finally:
        job.kill()
        fault_cases.mend_link(2)
    output = (tmp_path / "log").read_text()
    assert "error: the job ended because of the loss of host 10.77.0.2 with rank(s) 1" in output
    assert "on 3 host(s) with 3 rank(s): global batch 64 as before" in output
    going_on = next(line for line in output.splitlines() if line.startswith("going on at step"))
    step = int(going_on.split()[4])
    assert step >= 10
    assert seen_in_first_epoch(tmp_path, step) == wanted(digits, tmp_path)
    before = json.loads((tmp_path / "run" / "run.json").read_text())
    assert before["ranks"] == 3
    assert "launch --cluster" in before["command"]


def _wait_for_rows(folder: Path, count: int) -> None:
    """Until every rank of 4 has done so many steps."""
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        counts = [len(file.read_text().splitlines()) for file in folder.glob("seen.*")]
        if len(counts) >= 4 and min(counts[:4]) >= count:
            return
        time.sleep(0.05)
    raise TimeoutError("the ranks do not train")


def seen_in_first_epoch(folder: Path, step: int) -> collections.Counter[str]:
    """The pictures of the first epoch: up to the checkpoint of `step` by 4 ranks, and from there on by 3."""
    num_steps = -(-1442 // 64)
    seen: collections.Counter[str] = collections.Counter()
    for file in folder.glob("seen.*"):
        rows = [line.split() for line in file.read_text().splitlines()]
        for place, row in enumerate(rows):
            at = place if row[0] == "4" else step + place // 2  # two parts a step
            if (row[0] == "4" and at < step) or (row[0] == "3" and at < num_steps):
                seen.update(row[2:])
    return seen


def wanted(digits: Path, folder: Path) -> collections.Counter[str]:
    """All training pictures, as one rank sees them that is never disturbed."""
    script = (
        "import hashlib, sys\n"
        "from pathlib import Path\n"
        "from ddltrain.input.decode import train_sampling\n"
        "from ddltrain.input.loader import train_loader\n"
        "from ddltrain.recipe import read_recipe\n"
        "from ddltrain.train.setup import open_data\n"
        "recipe = read_recipe(Path(sys.argv[1]), sys.argv[2:])\n"
        "store = open_data(recipe).splits['train']\n"
        "with train_loader(store, train_sampling(recipe.data, 'float32'), 64) as loader:\n"
        "    for images, _ in loader:\n"
        "        for image in images:\n"
        "            print(hashlib.sha256(image.numpy().tobytes()).hexdigest()[:16])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(RECIPE), f"data={digits}", *VALUES],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return collections.Counter(done.stdout.split())
