"""What launch runs on every host: before a job it looks at the host, after a fault it ends what is left of the job.

python -m ddltrain.launch.look before DATA HOST...     prints one line of JSON
python -m ddltrain.launch.look after JOB               ends the job's processes, removes its folder
"""

import concurrent.futures
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ddltrain.comm.job_folder import JOB_VARIABLE, job_folder, sweep_job_folders
from ddltrain.doctor.facts import facts_to_dict, gather_facts
from ddltrain.errors import DataError

# Nothing listens for us there: a host that is reached refuses, or lets us in where it has ssh.
_PORT = 22
_CONNECT_TIMEOUT_S = 3.0
MARK = "ddltrain-look "


def main(words: Sequence[str]) -> None:
    """Do what the words say (see the top of this module)."""
    if words[0] == "after":
        end_job(words[1])
        return
    sweep_job_folders()
    data, error = _fingerprint(words[1])
    found = {"data": data, "data_error": error, "unreachable": unreachable(words[2:])}
    # The clock last: it is compared with that of the reader.
    print(
        MARK + json.dumps({**found, "facts": facts_to_dict(gather_facts()) | {"time_s": time.time()}}),
        flush=True,
    )


def unreachable(hosts: Sequence[str]) -> list[str]:
    """Those of `hosts` to which no way leads over the network."""
    with concurrent.futures.ThreadPoolExecutor(max(1, len(hosts))) as pool:
        reached = list(pool.map(_reaches, hosts))
    return [host for host, is_reached in zip(hosts, reached, strict=True) if not is_reached]


def end_job(job: str) -> None:
    """Kill this host's processes of a job, known by its mark in their environment, and remove its folder."""
    mark = f"{JOB_VARIABLE}={job}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
    shutil.rmtree(job_folder(job), ignore_errors=True)


def _reaches(host: str) -> bool:
    try:
        socket.create_connection((host, _PORT), _CONNECT_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True


def _fingerprint(path: str) -> tuple[str, str]:
    """Of the prepared data set at `path`, or why there is none."""
    if not path:
        return "", ""
    from ddltrain.input.store import read_description

    try:
        return str(read_description(Path(path)).get("fingerprint", ""))[:12], ""
    except DataError as error:
        return "", str(error)


if __name__ == "__main__":
    main(sys.argv[1:])
