import os

import pytest

from ddltrain.comm.world import World, agreed
from ddltrain.errors import DataError, RecipeError


def test_local_ranks_count_within_the_host(world: World) -> None:
    assert (world.local_rank, world.local_size) == (world.rank, world.world_size)


def test_starting_leaves_the_environment_as_it_was(world: World) -> None:
    assert "OMPI_MCA_btl" not in os.environ


def test_nothing_happens_where_no_rank_fails(world: World) -> None:
    with agreed(world):
        value = world.rank
    assert value == world.rank


def test_one_ranks_error_is_everybodys(world: World) -> None:
    last = world.world_size - 1
    with pytest.raises(DataError, match="no such folder") as caught, agreed(world):  # noqa: PT012
        if world.rank == last:
            raise DataError("no such folder")
    assert caught.value.on_all_ranks
    assert (f"on rank {last}/{world.world_size}: " in str(caught.value)) == (world.world_size > 1)


def test_an_error_of_all_ranks_does_not_name_one(world: World) -> None:
    with pytest.raises(RecipeError) as caught, agreed(world):
        raise RecipeError("bad key")
    assert str(caught.value) == "bad key"


def test_defects_pass_through(world: World) -> None:
    if world.world_size == 1:
        with pytest.raises(ZeroDivisionError), agreed(world):
            1 / 0  # noqa: B018
