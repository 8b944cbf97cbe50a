"""Decodes image files of any common kind with Pillow, to the pixels that a data set shall have.

A file is judged by its content, never by its name, and decoded whole. EXIF (or XMP) orientation is applied, transparency is
laid on white, of animations and of files with several pages the first picture counts, and 16-bit brightness is scaled to 8 bits.
"""

import struct
import warnings
import zlib
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from ddltrain.input.files import ImageError

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
MAX_PIXELS = 89_478_485  # 256 MiB as RGB; the bound where Pillow begins to warn of decompression bombs
WHITE = (255, 255, 255, 255)

# Pillow warns of odd metadata without naming the file; here only the pixels count.
warnings.filterwarnings("ignore", module=r"PIL\.")

# What brings a picture upright, by its EXIF orientation.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# What Pillow's parsers raise over damaged files.
DECODE_ERRORS = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


# The markers that begin a picture in a JPEG, and what they tell of its coding.
_CODINGS = {
    0xC0: "baseline",
    0xC1: "extended",
    0xC2: "progressive",
    0xC3: "lossless",
    0xC9: "arithmetic",
    0xCA: "arithmetic",
}


@dataclass(frozen=True)
class Picture:
    """A decoded image file: its pixels as they lie in the file, what it is in words, and its EXIF orientation, 1 to 8."""

    image: Image.Image
    kind: str
    orientation: int

    @property
    def is_jpeg(self) -> bool:
        """Whether it came as a JPEG; MPO is a JPEG with further JPEGs behind it."""
        return self.image.format in ("JPEG", "MPO")

    @property
    def format(self) -> str:
        """The format of the file, such as "jpeg" or "png"."""
        return "jpeg" if self.is_jpeg else (self.image.format or "").lower()


def decode(data: bytes) -> Picture:
    """Decodes an image file whole; raises `ImageError`."""
    if not data:
        raise ImageError("empty file", "empty")
    image = _load(data)
    if image.format == "PNG" and data[24] != 8 and data[25] in (0, 2):
        image.info.pop("transparency", None)  # a value of that depth, unfit for the 8 bits it is now
    return Picture(image, _kind(image, data), _orientation(image))


def upright(picture: Picture) -> Image.Image:
    """The picture as it is meant to be seen, 8-bit gray (mode L) or RGB; raises `ImageError`."""
    try:
        plain = _to_8bit(picture.image)
        turn = _TURNS.get(picture.orientation)
        return plain if turn is None else plain.transpose(turn)
    except DECODE_ERRORS as error:
        raise as_image_error(error) from error


def decode_rgb(data: bytes) -> Image.Image:
    """The pixels of an image file as `ddltrain prepare` would take them, upright, in mode RGB; raises `ImageError`."""
    return upright(decode(data)).convert("RGB")


def _load(data: bytes) -> Image.Image:
    """Opens and decodes a fresh object: one that failed half-way may later pass for whole."""
    try:
        image = Image.open(BytesIO(data), formats=FORMATS)
        if image.width * image.height > MAX_PIXELS:
            raise ImageError(
                f"{image.width}x{image.height} pixels, at most {MAX_PIXELS} are accepted", "bomb"
            )
        if image.format == "PNG":
            Image.open(BytesIO(data), formats=FORMATS).verify()  # decoding leaves the checksums out
        image.load()
    except UnidentifiedImageError:
        raise _unidentified(data) from None
    except DECODE_ERRORS as error:
        raise as_image_error(error) from error
    return image


def _unidentified(data: bytes) -> ImageError:
    if data.startswith(b"\xff\xd8\xff"):
        coding, bits = _jpeg_coding(data)
        if coding == "lossless" or bits not in (0, 8):
            return ImageError(f"a {bits}-bit {coding} JPEG, which is not supported", "unsupported")
        return ImageError("a damaged JPEG", "corrupt")
    if data.startswith(b"\x89PNG"):
        return ImageError("a damaged PNG", "corrupt")
    return ImageError(f"not an image of a known format (begins with {data[:8]!r})", "no image")


def _jpeg_coding(data: bytes) -> tuple[str, int]:
    """How a JPEG is coded and its bits a sample, from its first frame header; ("", 0) where there is none."""
    place = 2
    while place + 5 <= len(data):
        marker = data[place + 1]
        if data[place] != 0xFF or marker == 0xFF or marker in (0x01, *range(0xD0, 0xD9)):
            place += 1  # fill bytes, junk between segments, and markers without a length
        elif marker in _CODINGS:
            return _CODINGS[marker], data[place + 4]
        elif marker == 0xDA:
            break
        else:
            place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return "", 0


def _kind(image: Image.Image, data: bytes) -> str:
    """What the file is, in the words of the report."""
    if image.format in ("JPEG", "MPO"):
        colour = {"L": "gray ", "CMYK": "cmyk "}.get(image.mode, "")
        if colour == "cmyk " and image.info.get("adobe_transform") == 2:
            colour = "ycck "
        return f"{_jpeg_coding(data)[0]} {colour}jpeg"
    if image.format == "PNG":
        depth, color = data[24], data[25]  # of the header chunk, which is always first
        name = {0: "gray", 2: "rgb", 3: "palette", 4: "gray+alpha", 6: "rgba"}[color]
        name = "transparent " + name if color in (0, 2) and "transparency" in image.info else name
        return f"{name} png" + (f" {depth}-bit" if depth != 8 else "")
    return (image.format or "").lower()


def _orientation(image: Image.Image) -> int:
    """The EXIF or XMP orientation, 1 to 8; 1 if there is none, or if the metadata are damaged."""
    try:
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
    except DECODE_ERRORS:
        return 1
    return value if value in range(1, 9) else 1


def _to_8bit(image: Image.Image) -> Image.Image:
    """The decoded image in mode L or RGB."""
    if image.mode.startswith(("I", "F")):
        return _wide_gray_to_8bit(image)
    if image.mode == "1":
        return image.convert("L")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, WHITE), layer).convert("RGB")
    return image if image.mode in ("L", "RGB") else image.convert("RGB")


def _wide_gray_to_8bit(image: Image.Image) -> Image.Image:
    """Gray of 9 to 16 bits, scaled so that its white is 255; Pillow's own conversion would clip it at 255."""
    peak = 65535
    if image.format == "TIFF":
        tags = image.tag_v2  # type: ignore[attr-defined]
        bits = tags.get(258, (1,))[0]
        if not image.mode.startswith("I;16") or tags.get(262) != 1:
            raise ImageError(
                f"a TIFF of {bits}-bit gray without a defined white (mode {image.mode})", "unsupported"
            )
        peak = 2**bits - 1
    elif image.format not in ("PNG", "PPM") or image.mode == "F":
        raise ImageError(f"brightness without a defined white (mode {image.mode})", "unsupported")
    pixels = np.asarray(image).astype(np.uint32)
    return Image.fromarray(((pixels * 255 + peak // 2) // peak).astype(np.uint8))


def as_image_error(error: BaseException) -> ImageError:
    """What Pillow raised, as one line of at most 120 characters, without the addresses of objects."""
    if isinstance(error, ImageError):
        return error
    text = " ".join(str(error).split()) or type(error).__name__
    is_cut = any(word in text.lower() for word in ("truncated", "unexpected end", "eof"))
    if is_bomb := isinstance(error, Image.DecompressionBombError):
        text = text.split(",")[0]  # the rest warns of attacks
    fault = "bomb" if is_bomb else "truncated" if is_cut or isinstance(error, EOFError) else "corrupt"
    return ImageError(text if len(text) <= 120 else text[:117] + "...", fault)
