"""Runs a command on the hosts of a cluster, under mpiexec."""

import contextlib
import json
import os
import shlex
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ddltrain.cluster import network, state
from ddltrain.cluster.shape import Shape
from ddltrain.cluster.state import State
from ddltrain.comm.launch import find_mpiexec
from ddltrain.comm.supervise import supervise
from ddltrain.errors import ClusterError

# What the ranks find in their environment about the links between them, as JSON (see `link_facts`).
LINKS_VARIABLE = "DDL_LINKS"

# The file in which the agents of a job tell how each host's part of it ended.
ENDED_VARIABLE = "DDL_HOSTS_ENDED"
_TELL_TIMEOUT_S = 5.0

# mpiexec hangs now and then when a program ends while other hosts are still being told to start it.
_START_LATER = ("sh", "-c", 'sleep 0.2; exec "$0" "$@"')

# Becomes a program on a host. Beside its own network a host has its own name, shared memory and table of names, so that no library
# takes two hosts for one.
_ENTER = """#!/bin/sh
host=$1
shift
exec ip netns exec ddl-{name}-h$host unshare --uts --ipc sh -c \
'hostname "$0" && mount -t tmpfs tmpfs /dev/shm && mount --bind {folder}/hosts /etc/hosts && exec "$@"' {name}-h$host "$@"
"""

# mpiexec calls this as it would call ssh. The last number of an address is the number of the host. It stays outside of the host, to
# tell how that host's part of the job ended.
_AGENT = """#!/bin/sh
host=${{1##*.}}
shift
{folder}/enter $host sh -c "$*"
status=$?
echo $host $status >> ${{{variable}:-/dev/null}}
exit $status
"""


def write_scripts(shape: Shape) -> None:
    """Make the programs by which mpiexec reaches the hosts."""
    folder = state.folder_of(shape.name)
    for name, text in (("enter", _ENTER), ("agent", _AGENT)):
        (folder / name).write_text(text.format(name=shape.name, folder=folder, variable=ENDED_VARIABLE))
        (folder / name).chmod(0o755)
    # The second form is how sockets of both kinds of addresses see the first.
    names = [
        f"{form}{shape.address(host)} {shape.hostname(host)}"
        for form in ("", "::ffff:")
        for host in shape.hosts
    ]
    loopback = [f"{form}127.0.0.1 localhost" for form in ("", "::ffff:")]
    (folder / "hosts").write_text("\n".join([*loopback, *names, ""]))


def link_facts(known: State) -> dict[str, float | int | str]:
    """What a benchmark needs to know of a cluster: one flat dict."""
    shape = known.shape
    racks = {
        "uplink_bytes_s": shape.uplink_bits_s / shape.rate_bits_s * known.goodput_bytes_s * shape.num_links
    }
    return {
        "place": shape.describe(),
        "goodput_bytes_s": known.goodput_bytes_s * shape.num_links,
        "racks": shape.num_racks,
        **(racks if shape.num_racks > 1 else {}),
    }


def mpiexec_words(known: State, mpiexec: str, folder: Path, options: Sequence[str]) -> list[str]:
    """The words before the program; mpiexec runs on host 1 and keeps its scratch files in the cluster's `folder`."""
    shape = known.shape
    ranks = shape.ranks_per_host
    interfaces = ",".join(f"eth{link}" for link in range(shape.num_links))
    return [
        *(str(folder / "enter"), "1", mpiexec),
        *("--prtemca", "plm_ssh_agent", str(folder / "agent"), "--prtemca", "plm_ssh_no_tree_spawn", "1"),
        *("--prtemca", "prte_tmpdir_base", str(folder)),
        *("--host", ",".join(f"{shape.address(host)}:{ranks}" for host in shape.hosts)),
        *(
            "-n",
            str(shape.num_hosts * ranks),
            "--map-by",
            f"ppr:{ranks}:node:oversubscribe",
            "--bind-to",
            "none",
        ),
        # Only what passes the links: no transport that would find out that all hosts are one machine.
        *("--mca", "pml", "ob1", "--mca", "btl", "tcp,sm,self", "--mca", "btl_tcp_if_include", interfaces),
        *("--mca", "mpi_yield_when_idle", "1", *options),
    ]


def problems(known: State) -> str:
    """What is missing of a cluster that should stand; empty if nothing is."""
    missing = set(known.shape.namespaces) - network.existing_namespaces()
    if missing:
        return f"the namespaces {', '.join(sorted(missing))} are gone"
    if known.has_delay_switch and not network.processes_in([known.shape.switch_namespace]):
        return "the delay switch has ended"
    return ""


def environment(known: State, inherited: dict[str, str]) -> dict[str, str]:
    """The environment of mpiexec, which every host inherits."""
    interfaces = ",".join(f"eth{link}" for link in range(known.shape.num_links))
    kept = {name: value for name, value in inherited.items() if not name.startswith(("PRTE_", "PMIX_"))}
    return kept | {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "GLOO_SOCKET_IFNAME": interfaces,
        LINKS_VARIABLE: json.dumps(link_facts(known)),
    }


def run(name: str, options: str, program: Sequence[str]) -> int:
    """Run `program` under mpiexec on every rank of the cluster; the job's exit status.

    Args:
        options: more options for mpiexec, as a shell would read them.

    Raises:
        ClusterError: there is no such cluster, a part of it is gone, or a host was lost during the job.
    """
    network.check_may_build()
    known = state.read_up(name)
    if problem := problems(known):
        raise ClusterError(f"cluster {name}: {problem}; take it down and up again")
    words = mpiexec_words(known, find_mpiexec(), state.folder_of(name), shlex.split(options))
    with tempfile.NamedTemporaryFile("r", dir=state.folder_of(name), prefix="ended") as ended:
        added = {ENDED_VARIABLE: ended.name}
        status = supervise([*words, *_START_LATER, *program], environment(known, dict(os.environ)) | added)
        # mpiexec has been seen to call it a success when it lost a host.
        silent = [] if status else _silent_hosts(known, Path(ended.name))
        _end_stragglers(known, ended.name)
    if silent:
        raise ClusterError(
            f"cluster {name} lost a host, and with it the job: no good end was heard of host {', '.join(map(str, silent))}"
        )
    return status


def _end_stragglers(known: State, ended: str) -> None:
    """End what mpiexec left of the job: processes in our namespaces with this job's mark in their environment."""
    mark = f"{ENDED_VARIABLE}={ended}".encode()
    for process in network.processes_in(known.shape.namespaces):
        with contextlib.suppress(OSError):  # it has ended by now
            if mark in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
                os.kill(process, signal.SIGKILL)


def _silent_hosts(known: State, ended: Path) -> list[int]:
    """The hosts behind host 1 whose part of the job did not end by itself, after all of them had time to tell."""
    deadline_s = time.monotonic() + _TELL_TIMEOUT_S
    while True:
        told = dict(line.split() for line in ended.read_text().splitlines())
        if len(told) == known.shape.num_hosts - 1 or time.monotonic() > deadline_s:
            return [host for host in known.shape.hosts[1:] if told.get(str(host)) != "0"]
        time.sleep(0.01)
