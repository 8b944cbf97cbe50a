"""The memory that batches are decoded into, used again and again: fresh memory costs more than a small picture's decoding."""

import torch

from ddltrain.input.decode import Sampling


class Ring:
    """Buffers for the batches that are decoded ahead, the batch in use and the one before it."""

    def __init__(self, num_ahead: int, max_images: int, sampling: Sampling, pin: bool) -> None:
        self._num_buffers = num_ahead + 2
        self._max_images, self._sampling, self._pin = max_images, sampling, pin
        self._buffers: list[torch.Tensor] = []
        self._next = 0
        self._copies: dict[int, torch.cuda.Event] = {}

    @property
    def num_bytes(self) -> int:
        """What all buffers take."""
        pixels = self._max_images * 3 * self._sampling.image_size**2
        return self._num_buffers * pixels * self._sampling.dtype.itemsize

    def take(self, num_images: int) -> torch.Tensor:
        """The next buffer, [num_images, 3, size, size]; its former content may be overwritten at once."""
        if len(self._buffers) < self._num_buffers:
            self._buffers.append(self._sampling.empty_batch(self._max_images, self._pin))
        buffer = self._buffers[self._next % len(self._buffers)]
        self._next += 1
        copied = self._copies.pop(buffer.data_ptr(), None)
        if copied is not None:
            copied.synchronize()
        return buffer[:num_images]

    def used(self, images: torch.Tensor) -> None:
        """The user of a batch has come back for the next; what the device still copies of it is waited for before `take` reuses it."""
        if self._pin:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            self._copies[images.data_ptr()] = event
