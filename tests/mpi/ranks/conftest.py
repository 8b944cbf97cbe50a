"""These tests run on every rank of a job at once, and also on one. The first failure ends the whole job."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from ddltrain.comm.engine import Engine
from ddltrain.comm.world import World, start_world

if TYPE_CHECKING:
    from ddltrain.input.store import Dataset


@pytest.fixture(scope="session")
def world() -> World:
    return start_world()


@pytest.fixture(scope="session")
def engine(world: World) -> Engine:
    return Engine(world)


@pytest.fixture(scope="session")
def alone() -> World:
    """A world of this rank only."""
    from mpi4py import MPI

    return World(0, 1, 0, 1, "here", MPI.COMM_SELF)


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> "Dataset":
    from training_runs import make_dataset  # the engine's tests also run where no images can be decoded

    return make_dataset(tmp_path_factory.mktemp("data"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed:
        from mpi4py import MPI

        if MPI.COMM_WORLD.size > 1:  # the others would wait for this rank for ever
            print(
                f"[rank {MPI.COMM_WORLD.rank}] {item.nodeid}\n{report.longreprtext}",
                file=sys.stderr,
                flush=True,
            )
            MPI.COMM_WORLD.Abort(1)
    return report
