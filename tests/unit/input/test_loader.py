import io
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ddltrain.errors import DataError
from ddltrain.input.loader import Decoder, train_plan
from ddltrain.input.order import StepPlan
from ddltrain.input.store import Record, Store, StoreWriter
from ddltrain.input.transform import train_transform
from ddltrain.recipe import DataRecipe

RECIPE = DataRecipe(image_size=8, crop_padding=2, train_crop="pad")


def encoded(value: int) -> bytes:
    pixels = np.full((8, 8, 3), value, np.uint8)
    pixels[:4] //= 2
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    with StoreWriter(tmp_path / "train.lmdb") as writer:
        for number in range(53):
            writer.append(Record(f"{number}.png", number % 5, encoded(4 * number + 2)))
    return Store(tmp_path / "train.lmdb")


def epoch(
    store: Store, num_threads: int, world_size: int = 1, first_step: int = 0
) -> dict[int, tuple[int, bytes]]:
    """Record -> its label and pixels, over all ranks."""
    plan = StepPlan(len(store), world_size, 12 // world_size, "keep")
    seen = {}
    for rank in range(world_size):
        with Decoder(store, train_transform(RECIPE), 8, num_threads, pin=False) as decoder:
            for batch in decoder.batches(train_plan(plan, rank, 7, 1, first_step), 7, 1):
                assert batch.images.shape == (len(batch.records), 3, 8, 8)
                for record, label, image in zip(batch.records, batch.labels, batch.images, strict=True):
                    assert int(record) not in seen
                    seen[int(record)] = (int(label), image.numpy().tobytes())
    return seen


def test_every_record_comes_once_with_its_label(store: Store) -> None:
    seen = epoch(store, 2)
    assert sorted(seen) == list(range(53))
    assert all(label == record % 5 for record, (label, _) in seen.items())


def test_pixels_do_not_depend_on_threads_or_ranks(store: Store) -> None:
    assert epoch(store, 1) == epoch(store, 5) == epoch(store, 2, world_size=3)


def test_leaving_early_ends_the_threads(store: Store) -> None:
    before = threading.active_count()
    with Decoder(store, train_transform(RECIPE), 8, 3, pin=False) as decoder:
        batches = decoder.batches(train_plan(StepPlan(53, 1, 4, "keep"), 0, 7, 1, 0), 7, 1)
        next(batches)
        batches.close()
    assert threading.active_count() == before


def test_a_record_that_does_not_decode_is_named(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "train.lmdb") as writer:
        writer.append(Record("good.png", 0, encoded(9)))
        writer.append(Record("folder/cut.png", 0, encoded(9)[:40]))
    store = Store(tmp_path / "train.lmdb")
    plan = [(np.array([0, 1]), 2)]
    with (
        Decoder(store, train_transform(RECIPE), 8, 2, pin=False) as decoder,
        pytest.raises(DataError, match=r"record 1 \(folder/cut\.png\) .* does not decode"),
    ):
        list(decoder.batches(plan, 0, 0))
