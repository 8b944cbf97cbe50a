"""Private memory for the records that a rank holds. It ends with the process, however that ends."""

import mmap

import numpy as np
from numpy.typing import NDArray

from ddltrain.errors import DataError


class Region:
    """Bytes whose pages come into being as they are written, and can be given back in part.

    Attributes:
        block: uint8 [num_bytes].
    """

    block: NDArray[np.uint8]

    def __init__(self, num_bytes: int) -> None:
        """Raises `DataError` where the system does not promise so much memory."""
        try:
            self._memory = mmap.mmap(-1, max(1, num_bytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise DataError(
                f"the system gives no {num_bytes} bytes of memory ({error.strerror}); use more hosts, or prepare smaller "
                "pictures (--size shorter=256)"
            ) from error
        self.block = np.frombuffer(self._memory, np.uint8, num_bytes)

    def give_back(self, first: int, last: int) -> None:
        """Return the pages of bytes first to last - 1, and of what lies before them on the first page; the next page stays."""
        start, stop = (edge // mmap.PAGESIZE * mmap.PAGESIZE for edge in (first, last))
        if last == len(self.block):
            stop = len(self._memory)
        if start < stop:
            self._memory.madvise(mmap.MADV_DONTNEED, start, stop - start)
