"""The loader without the trainer, on several ranks: whole and spread sets, and positions that change the number of ranks."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from ddltrain.comm.world import World
from ddltrain.errors import DataError
from ddltrain.input import _image
from ddltrain.input.decode import Sampling
from ddltrain.input.loader import Loader, train_loader
from ddltrain.input.record import Record
from ddltrain.input.shards import StoreWriter
from ddltrain.input.store import Store

SAMPLING = Sampling(image_size=8, crop="pad", padding=2, flip=True)
GLOBAL_BATCH = 120  # divides by all numbers of ranks in use


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """1003 pictures of 8 to 31 pixels, the same on all ranks."""
    folder, random = tmp_path_factory.mktemp("store"), np.random.default_rng(0)
    with StoreWriter(folder, "train", shard_bytes=1 << 18) as writer:
        for record in range(1003):
            pixels = random.integers(0, 256, (*random.integers(8, 32, 2), 3), np.uint8)
            writer.append(Record(str(record), record % 7, _image.pack_pixels(pixels)))
    return Store([folder / shard.file for shard in writer.shards])


def loader_of(store: Store, world: World, groups: int | str, ranks_per_host: int) -> Loader:
    batch = GLOBAL_BATCH // world.world_size
    return train_loader(
        store,
        SAMPLING,
        batch,
        world=world,
        seed=5,
        groups=groups,
        num_threads=1,
        ranks_per_host=ranks_per_host,
        segment_bytes=1 << 14,
    )


def steps_of(loader: Loader, world: World, num_epochs: int) -> Iterator[tuple[np.ndarray, torch.Tensor]]:
    """The records and the images of each step, over all ranks in order."""
    for epoch in range(loader.epoch, num_epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            parts = world.comm.allgather((batch.records, batch.images.numpy()))
            assert batch.step_images == sum(len(records) for records, _ in parts)
            assert (batch.labels.numpy() == batch.records % 7).all()
            yield (
                np.concatenate([records for records, _ in parts]),
                torch.from_numpy(np.concatenate([images for _, images in parts])),
            )


@pytest.mark.parametrize(("groups", "ranks_per_host"), [("auto", 0), ("auto", 1), (1, 1), (2, 1), (1, 2)])
def test_steps_are_those_of_one_rank(
    store: Store, world: World, alone: World, groups: int | str, ranks_per_host: int
) -> None:
    num_hosts = -(-world.world_size // (ranks_per_host or world.world_size))
    if isinstance(groups, int) and groups > num_hosts:
        pytest.skip("more groups than hosts")
    with (
        loader_of(store, world, groups, ranks_per_host) as together,
        loader_of(store, alone, "auto", 0) as apart,
    ):
        ours, theirs = steps_of(together, world, 3), steps_of(apart, alone, 3)
        for (records, images), (own_records, own_images) in zip(ours, theirs, strict=True):
            assert np.array_equal(records, own_records)
            assert torch.equal(images, own_images)


def test_a_position_of_other_ranks_is_gone_on_from(store: Store, world: World, alone: World) -> None:
    with loader_of(store, alone, "auto", 0) as apart:
        steps = [(records, images.clone()) for records, images in steps_of(apart, alone, 2)]
    with loader_of(store, world, 1, 1) as together:
        together.load_state_dict({"epoch": 0, "step": 6})
        rest = list(steps_of(together, world, 2))
    assert len(rest) == len(steps) - 6
    for (records, images), (own_records, own_images) in zip(rest, steps[6:], strict=True):
        assert np.array_equal(records, own_records)
        assert torch.equal(images, own_images)


def test_leaving_in_mid_epoch_waits_for_nobody(store: Store, world: World) -> None:
    with loader_of(store, world, 1, 1) as loader:
        for step, _ in enumerate(loader):
            if step == 4:
                break
    world.comm.Barrier()


def test_images_that_do_not_fit_one_host_are_refused_on_all_ranks(
    store: Store, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_last = world.rank == world.world_size - 1
    monkeypatch.setattr("ddltrain.input.loader.free_bytes", lambda: 1 << (10 if is_last else 40))
    with pytest.raises(DataError, match="do not fit in memory") as caught:
        loader_of(store, world, "auto", 1)
    assert caught.value.on_all_ranks


def test_memory_has_no_name(store: Store, world: World) -> None:
    """Nothing of it can outlive the ranks."""
    with loader_of(store, world, "auto", 0) as loader:
        next(iter(loader))
        maps = Path("/proc/self/maps").read_text()
    assert "/memfd:ddltrain-images (deleted)" in maps
    assert not [path for path in Path("/dev/shm").iterdir() if "images" in path.name]
