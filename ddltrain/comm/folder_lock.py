"""A lock on a folder that ends with the process that holds it, however it ends."""

import fcntl
import os
from pathlib import Path
from types import TracebackType

SHARED, ALONE, ALONE_OR_NEVER = fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_EX | fcntl.LOCK_NB


class FolderLock:
    """A folder that this process holds. A context manager."""

    def __init__(self, folder: Path, how: int) -> None:
        """Lock a folder that exists.

        Args:
            how: SHARED or ALONE, which wait, or ALONE_OR_NEVER.

        Raises:
            OSError: it cannot be opened, or somebody else holds it and nothing was to wait.
        """
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.change(how)
        except OSError:
            os.close(self._descriptor)
            raise

    def change(self, how: int) -> None:
        """Hold it in another way. Raises as the constructor."""
        fcntl.flock(self._descriptor, how)

    def __enter__(self) -> "FolderLock":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)
