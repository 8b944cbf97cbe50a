"""One labelled image, its bytes and keys in a shard of the store, and what is told of a shard. Numbers are little-endian."""

import hashlib
import struct
from dataclasses import dataclass

LABELS_KEY = b"labels"
SIZES_KEY = b"sizes"
DIGESTS_KEY = b"digests"
NUM_ARRAYS = 3  # the keys above; they sort behind those of the records, which begin with a zero byte
DIGEST_BYTES = 16
SHARD_BYTES = 1 << 30

_HEADER = struct.Struct("<qI")  # label, length of the name in bytes


@dataclass(frozen=True)
class Record:
    """One labelled image.

    `name` is the path relative to the source, `label` the index of the class, `image` a packed image (JPEG with an
    index, or pixels; `ddltrain.input._image` makes and reads them).
    """

    name: str
    label: int
    image: bytes


def encode_record(record: Record) -> bytes:
    """The bytes of a record as they lie in the store."""
    name = record.name.encode("utf-8", "surrogateescape")  # names need not be valid UTF-8
    return _HEADER.pack(record.label, len(name)) + name + record.image


def decode_record(value: bytes) -> Record:
    """The inverse of `encode_record`."""
    label, name_bytes = _HEADER.unpack_from(value)
    end = _HEADER.size + name_bytes
    return Record(value[_HEADER.size : end].decode("utf-8", "surrogateescape"), label, value[end:])


def image_of(value: memoryview) -> memoryview:
    """The packed image in the bytes of a record, without copying it."""
    _, name_bytes = _HEADER.unpack_from(value)
    return value[_HEADER.size + name_bytes :]


def record_key(index: int) -> bytes:
    """The key of record `index` of a split: 8 bytes, big-endian, so that keys sort by number."""
    return index.to_bytes(8, "big")


def record_digest(value: bytes) -> bytes:
    """A checksum of the bytes of a record: the first half of their SHA-256."""
    return hashlib.sha256(value).digest()[:DIGEST_BYTES]


@dataclass(frozen=True)
class Shard:
    """A finished shard: the name of its file, the records in it, the size of the file, its SHA-256 in hex."""

    file: str
    images: int
    file_bytes: int
    sha256: str
