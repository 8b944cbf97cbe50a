"""A job on many hosts from the look at them to its end, and again after a fault."""

import os
import shlex
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddltrain.comm.job_folder import kept_job_folder
from ddltrain.comm.launch import find_mpiexec, job_environment, new_job
from ddltrain.comm.report import reporting_agent
from ddltrain.comm.supervise import Ending, Supervisor
from ddltrain.comm.world import give_home
from ddltrain.errors import LaunchError
from ddltrain.launch.again import first_ranks, ranks_to_go_on
from ddltrain.launch.hosts import Host
from ddltrain.launch.mpi import find_starter, start_words
from ddltrain.launch.place import Place
from ddltrain.launch.preflight import (
    Look,
    choose_network,
    clean_up,
    compare,
    cores_of_a_rank,
    look_at_hosts,
    lost_hosts,
    table,
)
from ddltrain.launch.program import Program

# Two faults of one host in a row are its own.
_MOST_FAULTS = 2


@dataclass(frozen=True)
class Options:
    """How to start a job.

    Attributes:
        binds: give each rank cores of its own.
        mpi_options: more words for mpiexec or srun.
        max_restarts: after faults.
        min_ranks: fewer are not started; 0: any number, all are wanted at the first start.
    """

    dry_run: bool = False
    binds: bool = False
    interface: str = ""
    mpi_options: tuple[str, ...] = ()
    max_restarts: int = 0
    min_ranks: int = 0


def launch(place: Place, program: Program, options: Options) -> int:
    """Run a program on the ranks of a place; the exit status.

    Raises:
        LaunchError: hosts are missing or do not fit each other, or too few are left.
    """
    looks = _checked_looks(place, program)
    if options.dry_run:
        words, environment = _command(place, program, options, looks, "JOB")
        added = [f"{name}={value}" for name, value in sorted(environment.items())]
        print(shlex.join(["env", *added, *words]))
        return 0
    recipe = program.recipe
    global_batch = recipe.train.global_batch_on(place.world_size) if recipe else 0
    faults: Counter[str] = Counter()
    num_restarts = 0
    while True:
        ending = _run(place, program, options, looks)
        lost = _lost_hosts(place, program) if ending.is_fault and len(place.hosts) > 1 else []
        ending.explain(_loss(place, lost))
        if not ending.is_fault or recipe is None or num_restarts == options.max_restarts:
            return ending.status
        if ending.cause and ending.cause.is_users:
            return ending.status  # it would happen again
        num_restarts += 1
        if ending.cause:
            rank, name = ending.cause.rank, ending.cause.host
            blamed = place.host_of(rank).name if rank >= 0 else name
            faults = Counter({blamed: faults[blamed] + 1})
        place = _without(place, {host.name for host in lost}, faults)
        num_ranks = ranks_to_go_on(place.world_size, options.min_ranks, recipe.bn.group)
        place = place.with_hosts(first_ranks(place.hosts, num_ranks))
        program = program.going_on(global_batch)
        _say(
            f"starting again ({num_restarts} of {options.max_restarts}) on {_described(place.hosts)}: "
            f"global batch {global_batch} as before"
        )
        looks = _checked_looks(place, program)


def start_here(num_ranks: int, words: Sequence[str]) -> int:
    """Run one of our commands on this host alone, without a look at it; the exit status.

    SIGTERM and SIGINT reach the ranks as SIGUSR1, at which training saves and stops; a second one, or one that comes before the ranks
    have started, ends the job at once. Should this process be killed, the ranks get SIGUSR1, too.

    Raises:
        CommError: no mpiexec.
    """
    place = Place((Host(socket.gethostname(), num_ranks),))
    ending = _run(place, Program(tuple(words)), Options(), [])
    ending.explain()
    return ending.status


def _checked_looks(place: Place, program: Program) -> list[Look]:
    """Look at the hosts and print the table.

    Raises:
        LaunchError: something must be mended first.
    """
    start_s = time.monotonic()
    looks = look_at_hosts(place, program.data)
    rows = compare(place.hosts, looks)
    _say(f"looked at {_described(place.hosts)} in {time.monotonic() - start_s:.1f} s")
    for line in table(place.hosts, rows):
        _say(line)
    if problems := [row.what for row in rows if row.problem]:
        raise LaunchError(f"the hosts do not fit ({', '.join(problems)}, see the table); nothing was started")
    return looks


def _command(
    place: Place,
    program: Program,
    options: Options,
    looks: Sequence[Look],
    job: str,
    agent: tuple[str, ...] = (),
) -> tuple[list[str], dict[str, str]]:
    """All words, and the environment to add. `agent`: instead of the place's, where MPI takes one of several words."""
    mpi = next((look.facts.mpi for look in looks if look.facts), "")
    starter = find_starter("" if place.is_slurm else find_mpiexec(), mpi, place.is_slurm)
    cores = cores_of_a_rank(place.hosts, looks) if looks else 0
    if options.binds and not cores:
        raise LaunchError("--bind: there are fewer cores than ranks; give fewer ranks, or leave it out")
    network = options.interface or choose_network(place, looks, by_name=starter.kind != "Open MPI")
    threads = max(1, cores)
    added = job_environment(job)
    if looks and "OMP_NUM_THREADS" not in os.environ:
        added["OMP_NUM_THREADS"] = str(threads)
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH"):
        if name in os.environ:
            added[name] = os.environ[name]
    if agent and starter.kind == "Open MPI":
        place = replace(place, agent=agent)
    words, environment = start_words(starter, place, network, threads, options.binds, added)
    return [*words, *options.mpi_options, *program.command()], environment


def _run(place: Place, program: Program, options: Options, looks: Sequence[Look]) -> Ending:
    job = new_job()
    ending: Ending | None = None
    # The agent in a file that also an emulated host sees, whose memory is its own.
    with kept_job_folder(job), tempfile.NamedTemporaryFile("w", prefix="ddltrain-agent-") as agent:
        agent.write(reporting_agent(place.agent))
        agent.flush()
        words, added = _command(place, program, options, looks, job, ("sh", agent.name))
        environment = os.environ | added
        give_home(environment)
        try:
            ending = Supervisor(words, environment).run()
        finally:
            if (ending is None or ending.is_fault) and (len(place.hosts) > 1 or place.entry):
                clean_up(place, job)
    return ending


def _lost_hosts(place: Place, program: Program) -> list[Host]:
    """The hosts that do not answer any more, or that the others do not reach."""
    return lost_hosts(place.hosts, look_at_hosts(place, program.data))


def _loss(place: Place, lost: Sequence[Host]) -> str:
    """In words; "" where no host is lost."""
    ranks = [rank for rank in range(place.world_size) if place.host_of(rank) in lost]
    names = ", ".join(host.name for host in lost)
    return f"the loss of host {names} with rank(s) {', '.join(map(str, ranks))}" if lost else ""


def _without(place: Place, lost: set[str], faults: Counter[str]) -> Place:
    """The place without lost hosts, and without those that fail again and again."""
    names = lost | {name for name, count in faults.items() if count >= _MOST_FAULTS}
    left = [host for host in place.hosts if host.name not in names]
    if not left:
        raise LaunchError("no host is left: mend them and go on with --resume")
    return place.with_hosts(left)


def _described(hosts: Sequence[Host]) -> str:
    ranks = sum(host.num_ranks for host in hosts)
    return f"{len(hosts)} host(s) with {ranks} rank(s)"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
