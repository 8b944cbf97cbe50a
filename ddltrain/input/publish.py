"""An output folder that appears whole or not at all.

It is built as a hidden folder beside its place and renamed at the end. A lock on a file inside keeps two
writers apart; the system drops it with the process, so a leftover without a lock can be taken over.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ddltrain.errors import DataError

LOCK_FILE = ".lock"


@contextmanager
def partial_folder(out: Path, is_worth_keeping: Callable[[Path], bool]) -> Iterator[Path]:
    """Gives a folder beside `out` to build in, with whatever a killed process left in it.

    Unless published it goes at the end of the block; only after Ctrl-C it stays if it `is_worth_keeping`. Raises `DataError` if
    another process builds the same `out`, or if the place cannot be written.
    """
    partial = _partial(out)
    lock = _lock(partial, out)
    is_kept = False
    try:
        _remove(_replaced(out))
        yield partial
    except KeyboardInterrupt:
        is_kept = is_worth_keeping(partial)
        raise
    finally:
        if _holds(lock, partial) and not is_kept:
            _remove(partial)
        os.close(lock)


def has_leftover(out: Path) -> bool:
    """Whether something is kept of building `out`."""
    return _partial(out).exists()


def clear_leftover(out: Path) -> None:
    """Removes what a killed process may have left of building `out`, but nothing that is in use."""
    if has_leftover(out):
        with suppress(DataError), partial_folder(out, lambda partial: False):
            pass


def keep_only(folder: Path, names: Iterable[str]) -> None:
    """Removes all that is in the folder being built, but its lock and what is named."""
    kept = {LOCK_FILE, *names}
    for entry in folder.iterdir():
        if entry.name not in kept:
            _remove(entry)


def publish(partial: Path, out: Path, replace: bool) -> None:
    """Puts the finished folder in the place of `out`, which must be missing or empty, or to be replaced.

    Raises `OSError`.
    """
    sync_folder(partial)
    if replace and out.exists():
        os.rename(out, _replaced(out))
    os.rename(partial, out)
    sync_folder(out.parent)
    _remove(_replaced(out))
    (out / LOCK_FILE).unlink()


def write_file(path: Path, text: str) -> None:
    """Writes a small file and waits until it is on the disk."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Waits until the names in a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _partial(out: Path) -> Path:
    return out.with_name(f".{out.name}.partial")


def _replaced(out: Path) -> Path:
    return out.with_name(f".{out.name}.replaced")


def _lock(partial: Path, out: Path) -> int:
    """Makes the folder and locks it; the lock lasts until the returned descriptor is closed."""
    try:
        partial.mkdir(parents=True, exist_ok=True)
        lock = os.open(partial / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise DataError(f"{out}: cannot write into {out.parent} ({error.strerror})") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _holds(lock, partial):
            raise BlockingIOError  # the other has just finished
    except BlockingIOError:
        os.close(lock)
        raise DataError(f"{out}: another process is preparing it; wait, or choose another OUT") from None
    return lock


def _holds(lock: int, partial: Path) -> bool:
    """Whether the lock file that we hold is still the one in the folder."""
    try:
        return os.path.samestat(os.fstat(lock), os.stat(partial / LOCK_FILE))
    except FileNotFoundError:
        return False


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
