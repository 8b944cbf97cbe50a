"""Finds labelled images inside tar archives, without unpacking them: what is read later is a range of bytes of the archive.

Nothing is ever written under a name that an archive gives. Links, devices and names that lead out of the archive are left
out and listed; an archive that is cut or damaged is an error.
"""

import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple, cast

from ddltrain.errors import DataError
from ddltrain.input.folders import FoundFile, has_image_suffix, is_hidden, list_folder

TAR_SUFFIX = ".tar"


class Member(NamedTuple):
    """A file in an archive: its name there, and where its bytes lie in the archive's file."""

    name: str
    offset: int
    size_bytes: int


def tars_in(folder: Path) -> list[Path]:
    """The tar archives in a folder, sorted by name."""
    names = [entry.name for entry in list_folder(folder) if not is_hidden(entry.name)]
    tars = [folder / name for name in names if name.lower().endswith(TAR_SUFFIX)]
    return [path for path in tars if path.is_file()]


def list_archive(path: Path, ignored: list[tuple[str, str]]) -> Iterator[Member]:
    """The files in the archive `path`, in its order; appends (name, reason) of what is left out to `ignored`.

    Raises `DataError` if it cannot be read, is no plain tar archive, is damaged or was cut.
    """
    try:
        with path.open("rb") as stream:
            yield from _members(stream, str(path), ignored)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def list_nested(path: Path, ignored: list[tuple[str, str]]) -> Iterator[tuple[str, list[Member]]]:
    """The archives in the archive `path`: the name of each, and the files in it, placed in the outer file."""
    try:
        with path.open("rb") as stream:
            for outer in _members(stream, str(path), ignored):
                if not outer.name.lower().endswith(TAR_SUFFIX):
                    ignored.append((f"{path.name}/{outer.name}", "not an archive"))
                    continue
                with _Window(path, outer.offset, outer.size_bytes) as inside:
                    found = _members(inside, f"{path}: {outer.name}", ignored)
                    yield (
                        outer.name,
                        [member._replace(offset=outer.offset + member.offset) for member in found],
                    )
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def image_files(
    path: Path, label: str, prefix: str, members: Iterable[Member], ignored: list[tuple[str, str]]
) -> list[FoundFile]:
    """The images among the members of the archive `path`, sorted by name, named as if they lay in the folder `prefix`."""
    mtime_ns = path.stat().st_mtime_ns
    found = []
    for member in members:
        base = PurePosixPath(member.name).name
        if is_hidden(base) or not has_image_suffix(base):
            ignored.append((prefix + base, "not the name of an image"))
        else:
            found.append(
                FoundFile(prefix + base, str(path), label, member.size_bytes, mtime_ns, member.offset)
            )
    return sorted(found)


class _Window:
    """A part of a file, as a file of its own."""

    def __init__(self, path: Path, start: int, size: int) -> None:
        self._file = path.open("rb")
        self._start, self._size, self._position = start, size, 0

    def __enter__(self) -> BinaryIO:
        return cast(BinaryIO, self)  # as much of one as tarfile uses

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> int:
        self._position = position
        return position

    def read(self, size: int) -> bytes:
        self._file.seek(self._start + self._position)
        data = self._file.read(max(0, min(size, self._size - self._position)))
        self._position += len(data)
        return data


def _members(stream: BinaryIO, where: str, ignored: list[tuple[str, str]]) -> Iterator[Member]:
    try:
        with tarfile.open(fileobj=stream, mode="r:", errorlevel=1) as archive:
            while (info := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # else all of them stay in memory
                if reason := _unfit(info):
                    ignored.append((f"{Path(where).name}/{info.name}", reason))
                elif not info.isdir():
                    yield Member(info.name, info.offset_data, info.size)
            _check_end(stream, archive.offset)
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise DataError(f"{where}: not a whole tar archive ({error}); get it again") from error


def _unfit(info: tarfile.TarInfo) -> str | None:
    if info.isdir():
        return None
    if not info.isreg() or info.issparse():
        return "a link, a device or a sparse file in an archive"
    path = PurePosixPath(info.name)
    if path.is_absolute() or ".." in path.parts or "\0" in info.name:
        return "a name that leads out of the archive"
    return None


def _check_end(stream: BinaryIO, offset: int) -> None:
    """Raises `tarfile.ReadError` unless the archive ends where reading it ended: damaged headers end it silently."""
    stream.seek(offset)
    if stream.read(tarfile.BLOCKSIZE).strip(b"\0"):
        raise tarfile.ReadError(f"damaged at byte {offset}")
