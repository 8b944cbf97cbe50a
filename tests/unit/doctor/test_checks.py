from dataclasses import replace
from pathlib import Path

import pytest

from ddltrain.doctor.checks import family, find_problems
from ddltrain.doctor.facts import Facts, gather_facts
from ddltrain.doctor.limits import cgroup_cores, cgroup_memory_bytes
from ddltrain.doctor.page import page

OPEN_MPI = "mpiexec (Open MPI) 5.0.11"


@pytest.fixture(scope="module")
def healthy() -> Facts:
    return replace(
        gather_facts(),
        mpi="Open MPI v5.0.11",
        mpi_error="",
        extension="Open MPI v5.0.11",
        torch="2.9.0+cpu",
        cores=8,
        allowed_cores=8,
        cgroup_cores=0.0,
        cgroup_memory_bytes=0,
        available_bytes=16 << 30,
        shm_free_bytes=1 << 30,
        open_files=4096,
        kernels="AVX2",
        gpus=(),
    )


def test_nothing_is_wrong_with_a_healthy_machine(healthy: Facts) -> None:
    assert find_problems(healthy, OPEN_MPI, "MULTIPLE") == []
    assert (
        page(healthy, ("/bin/mpiexec", OPEN_MPI), "MULTIPLE", [], [])[-1]
        == "nothing stands in the way of training"
    )


@pytest.mark.parametrize(
    ("odd", "mpiexec", "level", "prevents", "words"),
    [
        ({"mpi": "", "mpi_error": "cannot load"}, OPEN_MPI, "!none", True, "no MPI library"),
        ({}, OPEN_MPI, "!it aborts", True, "MPI does not start: it aborts"),
        ({}, OPEN_MPI, "SERIALIZED", False, "thread level SERIALIZED"),
        (
            {"extension": "", "extension_error": "no module"},
            OPEN_MPI,
            "MULTIPLE",
            True,
            "cannot be loaded (no module)",
        ),
        ({"extension": "MPICH Version: 5"}, OPEN_MPI, "MULTIPLE", True, "the extension runs on MPICH"),
        ({}, "", "MULTIPLE", False, "no mpiexec"),
        ({}, "HYDRA build details:", "MULTIPLE", True, "mpiexec belongs to MPICH, mpi4py to Open MPI"),
        ({"allowed_cores": 1}, OPEN_MPI, "MULTIPLE", False, "bound to 1 of 8 cores"),
        ({"cgroup_cores": 1.5}, OPEN_MPI, "MULTIPLE", False, "time of 1.5 cores"),
        ({"shm_free_bytes": 64 << 20}, OPEN_MPI, "MULTIPLE", False, "/dev/shm has 64.0 MiB"),
        ({"available_bytes": 1 << 20}, OPEN_MPI, "MULTIPLE", False, "1.0 MiB of memory"),
        ({"cgroup_memory_bytes": 1 << 30}, OPEN_MPI, "MULTIPLE", False, "1.0 GiB of memory"),
        ({"open_files": 256}, OPEN_MPI, "MULTIPLE", False, "256 files"),
        ({"torch": ""}, OPEN_MPI, "MULTIPLE", True, "torch is not installed"),
        ({"gpus": ("A100",)}, OPEN_MPI, "MULTIPLE", False, "1 GPU(s), but torch"),
        ({"kernels": "the compiler's baseline"}, OPEN_MPI, "MULTIPLE", False, "no AVX2"),
    ],
)
def test_each_problem_is_named_with_a_remedy(
    healthy: Facts, odd: dict[str, object], mpiexec: str, level: str, prevents: bool, words: str
) -> None:
    found = find_problems(replace(healthy, **odd), mpiexec, level)  # type: ignore[arg-type]
    assert [(problem.prevents, words in problem.text) for problem in found] == [(prevents, True)]
    assert found[0].remedy


def test_families() -> None:
    assert family("Open MPI v5.0.11, package: x") == "Open MPI"
    assert family("MPICH Version:      5.0.2") == "MPICH"
    assert family("Intel(R) MPI Library 2021.18 for Linux* OS") == "Intel MPI"
    assert family("other") == ""


def test_limits_of_both_versions_of_control_groups(tmp_path: Path) -> None:
    assert (cgroup_cores(tmp_path), cgroup_memory_bytes(tmp_path)) == (0.0, 0)
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert (cgroup_cores(tmp_path), cgroup_memory_bytes(tmp_path)) == (1.5, 0)
    (tmp_path / "cpu.max").unlink()
    for name, text in (
        ("cpu/cpu.cfs_quota_us", "200000"),
        ("cpu/cpu.cfs_period_us", "100000"),
        ("memory/memory.limit_in_bytes", str(1 << 30)),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert (cgroup_cores(tmp_path), cgroup_memory_bytes(tmp_path)) == (2.0, 1 << 30)
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1")
    assert cgroup_cores(tmp_path) == 0.0
