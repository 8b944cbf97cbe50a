"""The exact words for each MPI; a small script stands in for its mpiexec."""

from pathlib import Path

import pytest

from ddltrain.errors import LaunchError
from ddltrain.launch.hosts import Host
from ddltrain.launch.mpi import Starter, find_starter, start_words
from ddltrain.launch.place import Place

PLACE = Place((Host("a", 4), Host("b", 4)))
UNEVEN = Place((Host("a", 4), Host("b", 2)))


def words_of(starter: Starter, place: Place = PLACE, network: str = "", binds: bool = False) -> str:
    return " ".join(start_words(starter, place, network, 3, binds, {"DDL_JOB": "j"})[0])


@pytest.mark.parametrize(
    ("version", "mpi", "kind", "major"),
    [
        ("mpiexec (Open MPI) 5.0.11", "", "Open MPI", 5),
        ("mpirun (Open MPI) 4.1.4", "", "Open MPI", 4),
        ("HYDRA build details:\\n    Version: 5.0.2", "", "MPICH", 5),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 20260101", "", "Intel MPI", 2021),
    ],
)
def test_mpiexec_tells_what_it_is(tmp_path: Path, version: str, mpi: str, kind: str, major: int) -> None:
    script = tmp_path / "mpiexec"
    script.write_text(f'#!/bin/sh\nprintf "{version}\\n"\n')
    script.chmod(0o755)
    found = find_starter(str(script), mpi, is_slurm=False)
    assert (found.kind, found.major) == (kind, major)


def test_an_unknown_mpiexec_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "mpiexec"
    script.write_text("#!/bin/sh\necho other\n")
    script.chmod(0o755)
    with pytest.raises(LaunchError, match="start by hand"):
        find_starter(str(script), "", is_slurm=False)


def test_open_mpi() -> None:
    words = words_of(Starter("Open MPI", "mpiexec", 5), UNEVEN, "10.0.0.0/24")
    assert "--prtemca plm_ssh_agent ssh -o BatchMode=yes" in words
    assert "--host a:4,b:2 -n 6 --map-by slot:OVERSUBSCRIBE --bind-to none" in words
    assert "--mca btl_tcp_if_include 10.0.0.0/24" in words
    assert "-x DDL_JOB" in words
    assert "--map-by slot:PE=3 --bind-to core" in words_of(Starter("Open MPI", "mpiexec", 5), binds=True)
    assert "--mca plm_rsh_agent ssh" in words_of(Starter("Open MPI", "mpiexec", 4))
    one = words_of(Starter("Open MPI", "mpiexec", 5), Place((Host("a", 4),)))
    assert "--host" not in one
    assert "agent" not in one


def test_mpich_and_intel() -> None:
    words = words_of(Starter("MPICH", "mpiexec", 5), UNEVEN, "eth0", binds=True)
    assert words == "mpiexec -launcher ssh -hosts a:4,b:2 -n 6 -bind-to core:3 -iface eth0"
    words = words_of(Starter("Intel MPI", "mpiexec", 2021), PLACE, "eth0")
    assert words == "mpiexec -launcher ssh -hosts a,b -ppn 4 -n 8 -iface eth0"
    with pytest.raises(LaunchError, match="same number of ranks"):
        words_of(Starter("Intel MPI", "mpiexec", 2021), UNEVEN)
    own = Place(PLACE.hosts, agent=("/opt/reach",))
    assert "-launcher-exec /opt/reach" in words_of(Starter("MPICH", "mpiexec", 5), own)
    with pytest.raises(LaunchError, match="put it into a script"):
        words_of(Starter("MPICH", "mpiexec", 5), Place(PLACE.hosts, agent=("ssh", "-p", "2222")))


def test_slurm() -> None:
    place = Place(PLACE.hosts, is_slurm=True)
    starter = find_starter("", "Open MPI v5.0.11", is_slurm=True)
    assert words_of(starter, place) == (
        "srun --mpi=pmix --nodes=2 --ntasks=8 --distribution=block --kill-on-bad-exit=1 --ntasks-per-node=4 --nodelist=a,b "
        "--cpu-bind=none"
    )
    assert "--cpus-per-task=3 --cpu-bind=cores" in words_of(starter, place, binds=True)
    assert find_starter("", "MPICH Version: 5", is_slurm=True).pmi == "pmi2"
