import os
from pathlib import Path

import numpy as np
import pytest
import torch

from ddltrain.errors import DataError
from ddltrain.input import _image
from ddltrain.input.decode import Sampling
from ddltrain.input.loader import Loader, eval_loader, train_loader
from ddltrain.input.record import Record
from ddltrain.input.shards import StoreWriter
from ddltrain.input.store import Store

SAMPLING = Sampling(image_size=8, crop="pad", padding=2, flip=True)
NUM_RECORDS = 53


def pixels(record: int) -> np.ndarray:
    return np.random.default_rng(record).integers(0, 256, (8, 8, 3), np.uint8)


def write(folder: Path, images: list[bytes]) -> Store:
    with StoreWriter(folder, "train", shard_bytes=1 << 14) as writer:
        for record, image in enumerate(images):
            writer.append(Record(f"folder/{record}.png", record % 5, image))
    return Store([folder / shard.file for shard in writer.shards])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return write(tmp_path, [_image.pack_pixels(pixels(record)) for record in range(NUM_RECORDS)])


def epoch_of(loader: Loader, epoch: int) -> dict[int, tuple[int, bytes]]:
    """Record -> its label and pixels."""
    loader.set_epoch(epoch)
    seen = {}
    for batch in loader:
        images, labels = batch
        assert images.shape == (len(batch.records), 3, 8, 8)
        assert labels.dtype == torch.int64
        assert batch.step_images == len(batch.records)
        for record, label, image in zip(batch.records.tolist(), labels.tolist(), images, strict=True):
            assert record not in seen
            seen[record] = label, image.numpy().tobytes()
    return seen


def test_every_record_comes_once_with_its_label(store: Store) -> None:
    with train_loader(store, SAMPLING, 12) as loader:
        assert len(loader) == 5
        seen = epoch_of(loader, 0)
    assert sorted(seen) == list(range(NUM_RECORDS))
    assert all(label == record % 5 for record, (label, _) in seen.items())


def test_pixels_depend_on_seed_epoch_and_record_alone(store: Store) -> None:
    with (
        train_loader(store, SAMPLING, 12, seed=7, num_threads=1) as one,
        train_loader(store, SAMPLING, 5, seed=7, num_threads=5) as other,
        train_loader(store, SAMPLING, 12, seed=8) as another,
    ):
        first = epoch_of(one, 3)
        assert first == epoch_of(other, 3)
        assert first != epoch_of(other, 4)
        assert first != epoch_of(another, 3)
        assert first == epoch_of(other, 3)  # also after others


def test_evaluation_shows_the_records_in_order(store: Store) -> None:
    with eval_loader(store, Sampling(image_size=8)) as loader:
        for _ in range(2):
            batches = [(batch.images.numpy().copy(), batch.labels, batch.records) for batch in loader]
            assert np.array_equal(
                np.concatenate([records for *_, records in batches]), np.arange(NUM_RECORDS)
            )
            expected = np.stack([pixels(record) for record in range(NUM_RECORDS)]).transpose(0, 3, 1, 2)
            assert np.array_equal(np.concatenate([images for images, *_ in batches]), expected)


def test_the_position_is_all_there_is_to_save(store: Store) -> None:
    with train_loader(store, SAMPLING, 12, seed=7) as loader:
        whole = []
        for _ in range(2):
            whole += [(images.clone(), labels) for images, labels in loader]
        loader.set_epoch(0)
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state = loader.state_dict()
    assert state == {"epoch": 0, "step": 3}
    with train_loader(store, SAMPLING, 12, seed=7) as again:
        again.load_state_dict(state)
        rest = []
        for epoch in range(again.epoch, 2):
            again.set_epoch(epoch)
            rest += [(images.clone(), labels) for images, labels in again]
        assert again.state_dict() == {"epoch": 2, "step": 0}
    assert len(rest) == len(whole) - 3
    for (images, labels), (expected, expected_labels) in zip(rest, whole[3:], strict=True):
        assert torch.equal(images, expected)
        assert torch.equal(labels, expected_labels)


def test_an_iteration_that_was_left_starts_anew(store: Store) -> None:
    with train_loader(store, SAMPLING, 12) as loader:
        loader.set_epoch(2)
        first = next(iter(loader)).records
        assert np.array_equal(next(iter(loader)).records, first)
        assert len(epoch_of(loader, 2)) == NUM_RECORDS


def test_a_batch_stays_until_the_next_but_one(store: Store) -> None:
    with train_loader(store, SAMPLING, 4) as loader:
        before = None
        for batch in loader:
            if before is not None:
                assert torch.equal(before[0].images, before[1])
            before = batch, batch.images.clone()
        addresses = {batch.images.data_ptr() for batch in loader}
    assert len(addresses) == 4


@pytest.mark.parametrize("last_batch", ["keep", "drop"])
def test_the_last_batch_is_kept_or_dropped(store: Store, last_batch: str) -> None:
    with train_loader(store, SAMPLING, 12, last_batch=last_batch) as loader:
        sizes = [len(labels) for _, labels in loader]
    assert sizes == ([11, 11, 11, 10, 10] if last_batch == "keep" else [12] * 4)
    assert len(loader) == len(sizes)


def test_batches_come_normalized_where_asked_for(store: Store) -> None:
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    plain = Sampling(image_size=8)
    wanted = Sampling(image_size=8, output="float32", channels_last=False, mean=mean, std=std)
    with eval_loader(store, plain) as bytes_loader, eval_loader(store, wanted) as loader:
        for (raw, _), (images, _) in zip(bytes_loader, loader, strict=True):
            expected = (raw / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
            torch.testing.assert_close(images, expected.contiguous())
            assert images.is_contiguous()


def test_leaving_early_ends_the_threads(store: Store) -> None:
    before = len(os.listdir("/proc/self/task"))
    with train_loader(store, SAMPLING, 4, num_threads=3) as loader:
        next(iter(loader))
        assert len(os.listdir("/proc/self/task")) > before
    assert len(os.listdir("/proc/self/task")) == before


def test_a_record_that_does_not_decode_is_named(tmp_path: Path) -> None:
    good = [_image.pack_pixels(pixels(record)) for record in range(3)]
    store = write(tmp_path, [*good, good[0][:10]])
    with (
        pytest.raises(DataError, match=r"record 3 \(folder/3\.png\) does not decode"),
        train_loader(store, SAMPLING, 2) as loader,
    ):
        list(loader)


def test_images_that_do_not_fit_are_refused_before_anything_is_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddltrain.input.loader.free_bytes", lambda: 9000)
    with pytest.raises(DataError, match=r"the images do not fit in memory: whole on each host: host 0 needs"):
        train_loader(store, SAMPLING, 12)
    with pytest.raises(DataError, match="do not fit in memory"):
        eval_loader(store, SAMPLING)
