import pytest

from ddltrain.comm.world import World


@pytest.fixture(scope="session")
def alone() -> World:
    """A world of this process only."""
    from mpi4py import MPI

    return World(0, 1, 0, 1, "here", MPI.COMM_SELF)
