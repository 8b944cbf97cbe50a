import pytest

from ddltrain.comm.launch import mpiexec_command
from ddltrain.comm.world import check_launcher_size, launcher_size
from ddltrain.errors import CommError


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, (4, "OMPI_COMM_WORLD_SIZE")),
        ({"PMI_SIZE": "3", "SLURM_NTASKS": "8"}, (3, "PMI_SIZE")),
        ({"SLURM_NTASKS": "2"}, (2, "SLURM_NTASKS")),
        ({"WORLD_SIZE": "2"}, (2, "WORLD_SIZE")),
        ({"WORLD_SIZE": "many"}, None),
    ],
)
def test_launchers_announce_their_size(environ: dict[str, str], expected: tuple[int, str] | None) -> None:
    assert launcher_size(environ) == expected


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "WORLD_SIZE"])
def test_copies_that_mpi_did_not_join_are_refused(name: str) -> None:
    with pytest.raises(CommError, match=f"{name}=2, but MPI sees only this process"):
        check_launcher_size(1, {name: "2"})
    check_launcher_size(1, {name: "2", "DDL_ALLOW_SINGLETON": "1"})
    check_launcher_size(1, {name: "1"})
    check_launcher_size(2, {name: "2"})


def test_open_mpi_gets_its_flags_and_others_none() -> None:
    words, environment = mpiexec_command("/x/mpiexec", "mpiexec (Open MPI) 5.0.11", 3)
    assert words[:3] == ["/x/mpiexec", "-n", "3"]
    assert "slot:OVERSUBSCRIBE" in words
    assert environment["OMPI_MCA_mpi_yield_when_idle"] == "1"
    assert mpiexec_command("/x/mpiexec", "HYDRA build details", 3) == (["/x/mpiexec", "-n", "3"], {})
