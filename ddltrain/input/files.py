"""Reads the bytes of an image, from a file of its own or out of an archive."""

import os
import stat
from pathlib import Path

from ddltrain.errors import DataError

MAX_FILE_BYTES = 256 << 20


class ImageError(DataError):
    """An image cannot be used; the message is a short reason without the name of the file, `fault` its kind."""

    def __init__(self, message: str, fault: str) -> None:
        super().__init__(message)
        self.fault = fault


def read_file(path: str | Path) -> bytes:
    """The bytes of the file; raises `ImageError` if it cannot be read or is absurdly large."""
    try:
        facts = os.stat(path)
        if not stat.S_ISREG(facts.st_mode):  # reading a pipe or a device would never end
            raise ImageError("not a file", "unreadable")
        _check_size(facts.st_size)
        return Path(path).read_bytes()
    except OSError as error:
        raise ImageError(error.strerror or str(error), "unreadable") from error


def read_member(path: str, offset: int, size_bytes: int) -> bytes:
    """The bytes of a file in an archive; raises `ImageError` like `read_file`."""
    _check_size(size_bytes)
    try:
        with open(path, "rb", buffering=0) as file:
            data = os.pread(file.fileno(), size_bytes, offset)
    except OSError as error:
        raise ImageError(error.strerror or str(error), "unreadable") from error
    if len(data) != size_bytes:
        raise ImageError("the archive was cut", "unreadable")
    return data


def _check_size(size_bytes: int) -> None:
    if size_bytes > MAX_FILE_BYTES:
        raise ImageError(f"{size_bytes} bytes in one file, at most {MAX_FILE_BYTES} are accepted", "bomb")
