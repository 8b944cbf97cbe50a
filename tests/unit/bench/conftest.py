import pytest

from ddltrain.comm.world import World, start_world


@pytest.fixture(scope="session")
def alone() -> World:
    """A world of this process only."""
    return start_world()
