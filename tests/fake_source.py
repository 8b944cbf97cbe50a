"""Records in place of a store: sizes and bytes that tell each record from every other."""

import numpy as np
from numpy.typing import NDArray

from ddltrain.input.record import Record
from ddltrain.input.shard_reader import Take


class FakeSource:
    """`num_records` records of 0 to `max_bytes` bytes, the same in every process."""

    def __init__(self, num_records: int, max_bytes: int) -> None:
        random = np.random.default_rng(num_records)
        self.sizes = random.integers(0, max_bytes + 1, num_records)
        self.labels = random.integers(0, 10, num_records)
        self._bytes = random.integers(0, 256, max_bytes + num_records, np.uint8)
        self.num_read = 0

    def __len__(self) -> int:
        return len(self.sizes)

    def image(self, record: int) -> NDArray[np.uint8]:
        """The bytes of a record."""
        return self._bytes[record : record + self.sizes[record]]

    def __getitem__(self, record: int) -> Record:
        return Record(str(record), int(self.labels[record]), self.image(record).tobytes())

    def read(self, first: int, last: int, take: Take) -> None:
        """As `Store.read`, in two parts."""
        middle = (first + last) // 2
        for part in (range(first, middle), range(middle, last)):
            take([self.image(record).data for record in part])
        self.num_read += last - first

    def read_into(self, first: int, last: int, block: NDArray[np.uint8]) -> None:
        """As `Store.read_into`."""
        images: list[memoryview] = []
        self.read(first, last, images.extend)
        block[:] = np.frombuffer(b"".join(images), np.uint8)
