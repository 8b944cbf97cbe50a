"""Faults, done on purpose to real jobs: what ends, how soon, with what message, and what is left behind.

    python tests/faults.py --ranks 2 4 --places host cluster [--cases kill stop ...]

prints a table of all cases; `system/test_faults.py` runs a few of them. The cluster is an emulated one and takes root.
"""

import argparse
import fcntl
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fault_cases import CASES, CLUSTER, Case, kill_host, mend_link
from fault_programs import MODEL

REPOSITORY = Path(__file__).parent.parent
RECIPE = REPOSITORY / "models" / "resnet20-cifar" / "digits.toml"
LIMIT_S = 30  # that a fault may take to end the job
TIMEOUT_S = 150
NO_END = -1  # in place of a status
FOLDER_VARIABLE = "DDL_TEST_FOLDER"


@dataclass(frozen=True)
class Result:
    """How a case went: seconds from the fault to the end of the command (None: nobody saw when it was), what was said and left."""

    seconds: float | None
    status: int
    message: str
    output: str
    leftovers: list[str]
    run: Path


def run_case(case: Case, num_ranks: int, place: str, digits: Path, folder: Path) -> Result:
    """Do it. On a cluster of `num_ranks` hosts, or on this host."""
    (folder / "bad.py").write_text(
        MODEL.format(folder=str(folder), phase=case.phase, culprit=case.culprit, action=case.action)
    )
    words = _command(case, num_ranks, place, case.data(digits, folder) if case.data else digits, folder)
    log = (folder / "log").open("w+")
    before = set(os.listdir("/dev/shm"))
    environment = os.environ | {FOLDER_VARIABLE: str(folder), "PYTHONPATH": str(REPOSITORY)}
    start_s = time.time()
    job = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, cwd=folder, env=environment)
    fault_s = start_s
    try:
        if case.outside:
            _wait_until(lambda: _steps(folder, num_ranks) >= 5)
            fault_s = time.time()
            case.outside(2, folder)
        status = job.wait(TIMEOUT_S)
    except (subprocess.TimeoutExpired, TimeoutError):
        status = NO_END
    finally:
        job.kill()
        if case.outside and case.outside != kill_host:
            mend_link(2)
    end_s = time.time()
    is_timed = case.outside is not None or (folder / "fault").exists()
    if (folder / "fault").exists():
        fault_s = float((folder / "fault").read_text())
    log.seek(0)
    output = log.read()
    log.close()
    lines = re.findall(r"(?:error: |WARNING|\[rank|stopped).*", output)
    shm = [name for name in set(os.listdir("/dev/shm")) - before if _is_left(Path("/dev/shm", name))]
    return Result(
        end_s - fault_s if is_timed else None,
        status,
        lines[-1] if lines else "",
        output,
        [*_processes(folder), *shm],
        folder / "run",
    )


def problems(case: Case, num_ranks: int, place: str, result: Result) -> list[str]:
    """What is not as it should be."""
    found = []
    host = f"{CLUSTER}-h{case.culprit + 1}" if place == "cluster" else os.uname().nodename
    expected = {"rank": case.culprit, "ranks": num_ranks, "host": host}
    found += [
        f"lacks {word.format(**expected)!r}"
        for word in case.words
        if word.format(**expected) not in result.output
    ]
    is_right = result.status not in (0, 75) if case.status is None else result.status == case.status
    if not is_right or result.status == NO_END:
        found.append(f"status {result.status}" if result.status != NO_END else f"no end in {TIMEOUT_S} s")
    if result.seconds and result.seconds > LIMIT_S and case.status != 0:
        found.append(f"took {result.seconds:.0f} s")
    found += [f"left {name}" for name in result.leftovers]
    return found


def _command(case: Case, num_ranks: int, place: str, data: Path, folder: Path) -> list[str]:
    ddltrain = [sys.executable, "-m", "ddltrain"]
    if case.program:
        (folder / "program.py").write_text(case.program)
        if place == "cluster":
            return [*ddltrain, "cluster", "run", "--name", CLUSTER, "--", sys.executable, "program.py"]
        return [sys.executable, "-c", _MPIEXEC, str(num_ranks), sys.executable, "program.py"]
    values = [
        *("model.name=bad.py:make", "train.epochs=2", "train.batch_per_rank=32", "data.image_size=8"),
        *("data.eval_crop=1", "checkpoint.every_steps=6", "train.threads=1", "data.threads=1"),
    ]
    train = ["train", str(RECIPE), f"data={data}", *values, *case.overrides, "--run", str(folder / "run")]
    if place == "cluster":
        return [*ddltrain, "launch", "--cluster", CLUSTER, "--", *train]
    wrapper = ["unshare", "--mount", *case.wrapper] if case.wrapper else []
    return [*wrapper, *ddltrain, *train, "--ranks", str(num_ranks)]


# Ranks of a program that is not ours.
_MPIEXEC = """
import os, subprocess, sys
from ddltrain.comm.launch import find_mpiexec, mpiexec_command
mpiexec = find_mpiexec()
version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True).stdout
words, environment = mpiexec_command(mpiexec, version, int(sys.argv[1]))
sys.exit(subprocess.run([*words, *sys.argv[2:]], env=os.environ | environment).returncode)
"""


def _steps(folder: Path, num_ranks: int) -> int:
    """The steps that all ranks have begun."""
    counts = []
    for rank in range(num_ranks):
        try:
            counts.append(int((folder / f"steps{rank}").read_text().split()[1]))
        except (FileNotFoundError, IndexError):
            return 0
    return min(counts)


def _processes(folder: Path) -> list[str]:
    """Processes of the job that are still there after a moment."""
    mark = f"{FOLDER_VARIABLE}={folder}".encode()

    def left() -> list[str]:
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdecimal() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(f"process {entry.name} {(entry / 'comm').read_text().strip()}")
            except OSError:
                continue
        return found

    until_s = time.monotonic() + 5
    while left() and time.monotonic() < until_s:
        time.sleep(0.1)
    return left()


def _is_left(folder: Path) -> bool:
    """Whether it is a job's folder that no living job holds."""
    if not re.fullmatch(r"ddltrain-job-[0-9a-f]{12}", folder.name):
        return False
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _wait_until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > until_s:
            raise TimeoutError("the job did not get so far")
        time.sleep(0.05)


def up(num_hosts: int) -> None:
    """Bring up the cluster."""
    words = ["cluster", "up", "--name", CLUSTER, "--hosts", str(num_hosts), "--rate", "200mbit"]
    subprocess.run(
        [sys.executable, "-m", "ddltrain", *words], check=True, stdout=subprocess.DEVNULL, cwd=REPOSITORY
    )


def down() -> None:
    """Take it down."""
    words = ["cluster", "down", "--name", CLUSTER]
    subprocess.run(
        [sys.executable, "-m", "ddltrain", *words], check=True, stdout=subprocess.DEVNULL, cwd=REPOSITORY
    )


def main() -> int:
    """Run the cases that the command line names, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--places", nargs="+", choices=("host", "cluster"), default=["host", "cluster"])
    parser.add_argument(
        "--cases", nargs="+", choices=[case.name for case in CASES], default=[case.name for case in CASES]
    )
    args = parser.parse_args()
    print(
        "| fault | place | ranks | seconds | status | last message | |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    num_bad = 0
    with tempfile.TemporaryDirectory() as scratch:
        digits = Path(scratch) / "digits"
        words = [sys.executable, "-m", "ddltrain", "prepare", "digits", str(digits)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, cwd=REPOSITORY)
        for place in args.places:
            for num_ranks in args.ranks:
                if place == "cluster":
                    up(num_ranks)
                try:
                    for number, case in enumerate(CASES):
                        if case.name in args.cases and case.only in ("", place):
                            folder = Path(scratch) / f"{place}-{num_ranks}-{number}"
                            folder.mkdir()
                            num_bad += _print_case(case, num_ranks, place, digits, folder)
                finally:
                    if place == "cluster":
                        down()
    return int(num_bad > 0)


def _print_case(case: Case, num_ranks: int, place: str, digits: Path, folder: Path) -> bool:
    result = run_case(case, num_ranks, place, digits, folder)
    wrong = problems(case, num_ranks, place, result)
    cells = (
        case.what,
        place,
        num_ranks,
        f"{result.seconds:.1f}" if result.seconds else "-",
        result.status,
        result.message,
        "; ".join(wrong) or "ok",
    )
    print("| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |", flush=True)
    if wrong:
        print(result.output, file=sys.stderr, flush=True)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
