"""The doctor's page, for people."""

from collections.abc import Sequence

from ddltrain.doctor.checks import Problem, format_bytes
from ddltrain.doctor.facts import Facts
from ddltrain.doctor.links import Link


def page(
    facts: Facts,
    mpiexec: Sequence[str],
    thread_level: str,
    links: Sequence[Link],
    problems: Sequence[Problem],
) -> list[str]:
    """The lines of the page.

    Args:
        mpiexec: its path and version.
    """
    cores = f"{facts.cores} cores, {facts.allowed_cores} for this process"
    if facts.cgroup_cores:
        cores += f", time of {facts.cgroup_cores:g} by the container"
    memory = f"{format_bytes(facts.available_bytes)} of {format_bytes(facts.ram_bytes)} free"
    if facts.cgroup_memory_bytes:
        memory += f"; the container may have {format_bytes(facts.cgroup_memory_bytes)}"
    rows = [
        ("host", facts.host),
        ("ddltrain", f"{facts.ddltrain} (source {facts.source})"),
        ("Python", f"{facts.python} ({facts.executable})"),
        ("torch", f"{facts.torch or 'missing'}, torchvision {facts.torchvision or 'missing'}"),
        ("MPI", f"{facts.mpi or 'missing'} ({facts.mpi_file}), by mpi4py {facts.mpi4py or 'missing'}"),
        ("mpiexec", f"{mpiexec[0]} ({mpiexec[1]})" if mpiexec[0] else "missing"),
        (
            "threads",
            "MPI does not start" if thread_level.startswith("!") else f"MPI gives level {thread_level}",
        ),
        ("extension", _extension(facts)),
        ("processor", f"{facts.processor}; reductions use {facts.kernels}"),
        ("cores", cores),
        ("memory", memory),
        ("/dev/shm", f"{format_bytes(facts.shm_free_bytes)} of {format_bytes(facts.shm_bytes)} free"),
        ("GPUs", ", ".join(facts.gpus) or "none"),
        *(
            ("network", f"{one.name} {one.address} in {one.network}{_speed(one.speed_mbit_s)}")
            for one in facts.interfaces
        ),
    ]
    lines = [f"{name:<10} {text}" for name, text in rows]
    return [*lines, *_links(links), "", *_problems(problems)]


def _extension(facts: Facts) -> str:
    if not facts.extension:
        return "not loaded"
    return f"runs on {facts.extension}{', as mpi4py does' if facts.extension == facts.mpi else ''}"


def _speed(mbit_s: int) -> str:
    return f", {mbit_s} Mbit/s" if mbit_s else ""


def _links(links: Sequence[Link]) -> list[str]:
    if not links:
        return ["ranks      one; start with `mpiexec` or --ranks N to measure the ways between ranks"]
    lines = ["", "ranks          hosts                          8 bytes one way      4 MiB one way"]
    for link in links:
        ranks, hosts = f"{link.source} -> {link.target}", f"{link.source_host} -> {link.target_host}"
        lines.append(
            f"{ranks:<14} {hosts:<30} {link.latency_s * 1e6:>9.1f} us       {link.bandwidth_bytes_s / 1e6:>9.0f} MB/s"
        )
    return lines


def _problems(problems: Sequence[Problem]) -> list[str]:
    if not problems:
        return ["nothing stands in the way of training"]
    return [
        line
        for problem in problems
        for line in (
            f"{'PROBLEM' if problem.prevents else 'warning'}: {problem.text}",
            f"  -> {problem.remedy}",
        )
    ]
