"""Batches of images for one rank, decoded ahead by a pool of threads.

Pillow releases the GIL while it decodes and resizes, so threads do; processes could not be forked after MPI has started.
"""

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from ddltrain.errors import DataError
from ddltrain.input.images import decode_rgb
from ddltrain.input.order import StepPlan, epoch_order
from ddltrain.input.store import Store
from ddltrain.input.transform import Transform, record_generator

# Evaluation batches are cut at the same places whatever the number of ranks, so that no image's result can depend on it.
EVAL_BATCH_IMAGES = 64
_BATCHES_AHEAD = 2


@dataclass(frozen=True)
class Batch:
    """One rank's images of one step.

    Attributes:
        images: uint8 [n, 3, size, size], channels_last in memory.
        labels: int64 [n].
        records: int64 [n], their places in the store.
        step_images: images of this step on all ranks.
    """

    images: torch.Tensor
    labels: torch.Tensor
    records: np.ndarray
    step_images: int


class Decoder:
    """Decodes records of one store with `num_threads` threads. Use as a context manager: leaving it ends the threads."""

    def __init__(
        self, store: Store, transform: Transform, image_size: int, num_threads: int, pin: bool
    ) -> None:
        self._store = store
        self._transform = transform
        self._image_size = image_size
        self._num_threads = num_threads
        self._pin = pin
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="decode")

    def __enter__(self) -> "Decoder":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def batches(self, plan: Iterable[tuple[np.ndarray, int]], seed: int, epoch: int) -> Generator[Batch]:
        """Decode batches in order, a few ahead of the one in use.

        Args:
            plan: for each batch the records, int64 [n], and `step_images`.
            seed, epoch: with the record, the key of its random numbers.

        Raises:
            DataError: a record does not decode.
        """
        ahead: deque[tuple[Batch, list[Future[None]]]] = deque()
        try:
            for records, step_images in plan:
                ahead.append(self._start(records, step_images, seed, epoch))
                if len(ahead) > _BATCHES_AHEAD:
                    yield _finish(*ahead.popleft())
            while ahead:
                yield _finish(*ahead.popleft())
        finally:
            for _, parts in ahead:
                for part in parts:
                    part.cancel()

    def _start(
        self, records: np.ndarray, step_images: int, seed: int, epoch: int
    ) -> tuple[Batch, list[Future[None]]]:
        shape = (len(records), self._image_size, self._image_size, 3)
        pixels = torch.empty(shape, dtype=torch.uint8, pin_memory=self._pin)
        batch = Batch(
            pixels.permute(0, 3, 1, 2), torch.from_numpy(self._store.labels[records]), records, step_images
        )
        parts = np.array_split(np.arange(len(records)), self._num_threads)
        futures = [
            self._pool.submit(self._decode, pixels.numpy(), records, part, seed, epoch) for part in parts
        ]
        return batch, futures

    def _decode(
        self, pixels: np.ndarray, records: np.ndarray, part: np.ndarray, seed: int, epoch: int
    ) -> None:
        for place in part:
            record = int(records[place])
            stored = self._store[record]
            try:
                image = decode_rgb(stored.image)
            except DataError as error:
                raise DataError(
                    f"record {record} ({stored.name}) of {self._store.path} does not decode: {error}; prepare the data set again"
                ) from error
            pixels[place] = self._transform(image, record_generator(seed, epoch, record))


def _finish(batch: Batch, parts: list[Future[None]]) -> Batch:
    for part in parts:
        part.result()
    return batch


def train_plan(
    steps: StepPlan, rank: int, seed: int, epoch: int, first_step: int
) -> Iterator[tuple[np.ndarray, int]]:
    """What `rank` reads in each step of an epoch, from `first_step` on."""
    order = epoch_order(steps.num_records, seed, epoch)
    for step in range(first_step, steps.num_steps):
        start, stop = steps.step_range(step)
        first, behind = steps.rank_range(step, rank)
        yield order[first:behind], stop - start


def eval_plan(num_records: int, rank: int, world_size: int) -> Iterator[tuple[np.ndarray, int]]:
    """What `rank` evaluates: every world_size-th of the fixed batches; nothing where there are fewer batches than ranks."""
    for start in range(rank * EVAL_BATCH_IMAGES, num_records, world_size * EVAL_BATCH_IMAGES):
        records = np.arange(start, min(start + EVAL_BATCH_IMAGES, num_records))
        yield records, len(records)
