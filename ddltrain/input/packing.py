"""Turns an image file into the packed image of a record, and proves it.

A baseline JPEG in gray or YCbCr keeps its coefficients to the bit. Whatever else there is (progressive, CMYK, turned by EXIF, PNG
and so on) is encoded anew once, as a JPEG of quality 95 with full chroma; small pictures that came without loss keep their pixels.
Pictures may be shrunk on the way. Every packed image is decoded and compared with Pillow's decode of the same picture.
"""

import os
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from PIL import Image

from ddltrain.input import _image
from ddltrain.input.files import ImageError
from ddltrain.input.folders import FORMAT_OF_SUFFIX
from ddltrain.input.images import DECODE_ERRORS, Picture, as_image_error, decode, upright

MAX_DIFFERENCE = 1  # levels between our decode of a packed image and Pillow's; both round, not always alike
MAX_PIXELS_SIDE = 64  # lossless pictures up to this stay pixels
TRANSCODE_QUALITY = 95
SHRINK_QUALITY = 90
TURNED = "turned upright (EXIF orientation)"


@dataclass(frozen=True)
class Shape:
    """How large pictures may be, and how they are encoded if they must be.

    `side` is "shorter" or "longer", the side that is brought down to `pixels`, or "keep". `quality` is that of JPEGs that are
    encoded anew; None stands for 90 where they were shrunk, else 95.
    """

    side: str = "keep"
    pixels: int = 0
    quality: int | None = None

    def name(self) -> str:
        """The size as it is given on the command line, such as "shorter=256"."""
        return f"{self.side}={self.pixels}" if self.pixels else self.side

    def shrunk(self, width: int, height: int) -> tuple[int, int] | None:
        """The size that a larger picture is brought to, (width, height); None if it stays as it is."""
        side = {"keep": 0, "shorter": min(width, height), "longer": max(width, height)}[self.side]
        if side <= self.pixels or not self.pixels:
            return None
        return max(1, round(width * self.pixels / side)), max(1, round(height * self.pixels / side))


@dataclass(frozen=True)
class Packed:
    """A packed image and what there is to report of it.

    `kind` tells what the file was, `stored` what became of it ("coefficients kept", "shrunk", "encoded anew", "pixels"), `notes`
    whatever is odd about it.
    """

    image: bytes
    kind: str
    stored: str
    notes: tuple[str, ...]
    width: int
    height: int


def pack_image(data: bytes, name: str, shape: Shape) -> Packed:
    """Packs the image file `data`; raises `ImageError`."""
    picture = decode(data)
    try:
        packed, reference, stored, reason = _pack(picture, data, shape)
    except DECODE_ERRORS as error:
        raise as_image_error(error) from error
    _prove(packed, reference)
    return Packed(
        packed, picture.kind, stored, _notes(picture, name, reason), reference.width, reference.height
    )


def _pack(picture: Picture, data: bytes, shape: Shape) -> tuple[bytes, Image.Image, str, str]:
    """The packed image, the pixels it must decode to, what became of the file, and why a JPEG could not be kept."""
    reason = ""
    turned = picture.orientation > 4
    size = shape.shrunk(*(picture.image.size[::-1] if turned else picture.image.size))
    if picture.is_jpeg and picture.orientation == 1 and size is None:
        try:
            return _image.pack_jpeg(data), picture.image, "coefficients kept", ""
        except _image.Unsupported as error:
            reason = str(error)  # encoded anew below
    plain = upright(picture)
    if size is not None:
        plain = plain.resize(size, Image.Resampling.LANCZOS)
    if not picture.is_jpeg and max(plain.size) <= MAX_PIXELS_SIDE:
        return _image.pack_pixels(np.ascontiguousarray(plain)), plain, "pixels", ""
    encoded = _encode(plain, shape, is_shrunk=size is not None)
    stored = "shrunk" if size is not None else "encoded anew"
    return _image.pack_jpeg(encoded), Image.open(BytesIO(encoded)), stored, reason


def _encode(image: Image.Image, shape: Shape, is_shrunk: bool) -> bytes:
    buffer = BytesIO()
    image.info.clear()  # else Pillow would hand on colour profiles of the original
    if is_shrunk:
        image.save(buffer, "JPEG", quality=shape.quality or SHRINK_QUALITY)
    else:
        image.save(buffer, "JPEG", quality=shape.quality or TRANSCODE_QUALITY, subsampling=0)
    return buffer.getvalue()


def _prove(packed: bytes, reference: Image.Image) -> None:
    """Raises `ImageError` unless a packed image decodes to the pixels that Pillow finds."""
    ours, theirs = _image.decode_rgb(packed), np.asarray(reference.convert("RGB"))
    if ours.shape != theirs.shape:
        raise ImageError(
            f"packed as {ours.shape[1]}x{ours.shape[0]} pixels, not {reference.width}x{reference.height}",
            "unproven",
        )
    difference = int((np.maximum(ours, theirs) - np.minimum(ours, theirs)).max())
    if difference > MAX_DIFFERENCE:
        raise ImageError(f"decodes differently from Pillow, by up to {difference} levels", "unproven")


def _notes(picture: Picture, name: str, reason: str) -> tuple[str, ...]:
    notes = []
    if reason:
        notes.append(f"{picture.kind}, encoded anew ({reason})")
    if picture.orientation != 1:
        notes.append(TURNED)
    suffix = os.path.splitext(name)[1].lower()
    if FORMAT_OF_SUFFIX.get(suffix, picture.format) != picture.format:
        notes.append(f"{picture.format} named {suffix}")
    return tuple(notes)
