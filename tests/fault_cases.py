"""The faults that `faults.py` does to real jobs, and what is expected of each."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fault_programs import MISMATCH

from ddltrain.input.store import open_dataset

# The emulated cluster that they are done on.
CLUSTER = f"f{os.getpid()}"


@dataclass(frozen=True)
class Case:
    """One fault.

    Attributes:
        phase, action: where in the model it happens and what it is, in Python.
        words: that the messages must hold, `{rank}` and `{host}` being those of the culprit.
        status: the command's, or None for any that is a failure.
        outside: what the harness does once the ranks train; the number is the culprit's host.
    """

    name: str
    what: str
    phase: str = ""
    action: str = "pass"
    words: tuple[str, ...] = ()
    status: int | None = None
    culprit: int = 1
    overrides: tuple[str, ...] = ()
    outside: Callable[[int, Path], None] | None = None
    only: str = ""
    wrapper: tuple[str, ...] = ()
    program: str = ""
    data: Callable[[Path, Path], Path] | None = None


_CAUSE = ("error: the job ended because of rank {rank}/{ranks} on host {host}",)
_STALL = ("comm.stall_report_s=2", "comm.timeout_s=6")


def _cut_link(host: int, folder: Path) -> None:
    subprocess.run(["ip", "-n", f"ddl-{CLUSTER}-switch", "link", "set", f"h{host}l0", "down"], check=True)


def mend_link(host: int) -> None:
    subprocess.run(["ip", "-n", f"ddl-{CLUSTER}-switch", "link", "set", f"h{host}l0", "up"], check=True)


def lose_host(host: int, folder: Path) -> None:
    _cut_link(host, folder)
    kill_host(host, folder)


def kill_host(host: int, folder: Path) -> None:
    listed = subprocess.run(
        ["ip", "netns", "pids", f"ddl-{CLUSTER}-h{host}"], capture_output=True, text=True, check=True
    )
    for process in listed.stdout.split():
        os.kill(int(process), signal.SIGKILL)


def _damage(digits: Path, folder: Path) -> Path:
    """A copy of the data set with some pictures that do not decode."""
    copy = folder / "damaged"
    shutil.copytree(digits, copy)
    store = open_dataset(copy).splits["train"]
    images = [store[record].image for record in range(100, 200)]
    file = next(copy.glob("train*"))
    data = bytearray(file.read_bytes())
    for image in images:
        data[data.index(image)] ^= 0xFF
    file.write_bytes(data)
    return copy


_SMALL_DISK = ("sh", "-c", 'mkdir -p run && mount -t tmpfs -o size=16m tmpfs run && exec "$@"', "sh")
_SMALL_SHM = ("sh", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"', "sh")

CASES = (
    *(
        Case(
            f"exception-{phase}",
            f"exception in {phase}",
            phase,
            "raise ValueError('deliberate')",
            (*_CAUSE, "ValueError: deliberate"),
            culprit=0 if phase == "save" else 1,
        )
        for phase in ("forward", "backward", "evaluation", "save")
    ),
    Case(
        "exception-construct",
        "exception while the model is made",
        "construct",
        "raise ValueError('deliberate')",
        ("ValueError: deliberate",),
    ),
    Case(
        "kill", "SIGKILL", "forward", "os.kill(os.getpid(), signal.SIGKILL)", (*_CAUSE, "signal 9 (SIGKILL)")
    ),
    Case("crash", "SIGSEGV", "backward", "os.kill(os.getpid(), signal.SIGSEGV)", (*_CAUSE, "SIGSEGV")),
    Case("exit", "exit without a word", "forward", "os._exit(7)", _CAUSE, 7),
    Case(
        "stop",
        "SIGSTOP",
        "forward",
        "os.kill(os.getpid(), signal.SIGSTOP)",
        (*_CAUSE, "rank {rank} on host {host} is waited for and does not come", "bucket"),
        overrides=_STALL,
    ),
    Case(
        "stop-torch",
        "SIGSTOP, summing by torch.distributed",
        "forward",
        "os.kill(os.getpid(), signal.SIGSTOP)",
        (*_CAUSE, "'bucket 0' inside the host waits for rank {rank}"),
        overrides=(*_STALL, "comm.local=torch"),
        only="host",
    ),
    Case(
        "stop-evaluation",
        "SIGSTOP in the evaluation",
        "evaluation",
        "os.kill(os.getpid(), signal.SIGSTOP)",
        ("error: the job ended because of rank", "no progress for"),
        overrides=_STALL,
    ),
    Case(
        "nan",
        "NaN in the loss, policy stop",
        "nan",
        words=("is not finite at step 4", "rank {rank} on host {host}, output of first"),
        status=2,
    ),
    Case(
        "nan-skip",
        "NaN in the loss, policy skip",
        "nan",
        words=("the step is skipped",),
        status=0,
        overrides=("train.not_finite=skip",),
    ),
    Case(
        "differ",
        "another model on one rank",
        "differ",
        words=("the model of rank {rank} is not that of rank 0",),
        status=2,
    ),
    Case(
        "term",
        "SIGTERM to one rank",
        "forward",
        "os.kill(os.getpid(), signal.SIGTERM)",
        ("all is saved",),
        75,
    ),
    Case(
        "usr1",
        "SIGUSR1 to one rank",
        "backward",
        "os.kill(os.getpid(), signal.SIGUSR1)",
        ("all is saved",),
        75,
    ),
    Case(
        "data",
        "a picture that does not decode",
        words=("does not decode", "error: the job ended because of rank"),
        data=_damage,
    ),
    Case(
        "disk",
        "full disk at a checkpoint",
        "save",
        "fill_disk()",
        ("WARNING: cannot write the checkpoint",),
        0,
        culprit=0,
        wrapper=_SMALL_DISK,
        only="host",
        overrides=("train.epochs=4",),  # on 8 ranks, too, it is not the last one
    ),
    Case("shm", "/dev/shm of 64 MiB", status=0, wrapper=_SMALL_SHM, only="host"),
    Case(
        "sizes",
        "all-reduces of other sizes",
        program=MISMATCH.format(what="sizes", algorithm="auto"),
        words=("[rank ",),
    ),
    Case(
        "order",
        "all-reduces in another order",
        program=MISMATCH.format(what="order", algorithm="auto"),
        words=("[rank ",),
    ),
    Case(
        "cut", "a cut link", outside=_cut_link, words=("the loss of host",), only="cluster", overrides=_STALL
    ),
    Case(
        "lost",
        "a lost host",
        outside=lose_host,
        words=("the loss of host",),
        only="cluster",
        overrides=_STALL,
    ),
    Case(
        "daemon",
        "all processes of a host killed",
        outside=kill_host,
        words=(
            "error: the job ended because of ",
            "mpiexec has lost all that it ran there",
        ),
        only="cluster",
    ),
)
