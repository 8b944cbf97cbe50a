"""What becomes of an image file: checked by decoding it whole, kept as it is if common, else converted.

A file is judged by its content, never by its name. A JPEG or PNG of 8-bit gray or RGB that needs no turning
is kept byte for byte. All others become one of those: a JPEG stays a JPEG (quality 95, full chroma), the rest
become PNG. EXIF (or XMP) orientation is applied, transparency is laid on white, of animations and of files
with several pages the first picture counts, and 16-bit brightness is scaled to 8 bits.
"""

import os
import stat
import struct
import warnings
import zlib
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from ddltrain.errors import DataError

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
MAX_PIXELS = 89_478_485  # 256 MiB as RGB; the bound where Pillow begins to warn of decompression bombs
MAX_FILE_BYTES = 256 << 20
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
_DECODE_ERRORS = (
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


class ImageError(DataError):
    """An image cannot be used; the message is a short reason without the name of the file."""


@dataclass(frozen=True)
class Normalized:
    """A usable image: its encoded bytes, what it was (`kind`), whether that was converted, its pixels."""

    image: bytes
    kind: str
    converted: bool
    width: int
    height: int


def read_image_file(path: str | Path) -> bytes:
    """The bytes of the file; raises `ImageError` if it cannot be read or is absurdly large."""
    try:
        facts = os.stat(path)
        if not stat.S_ISREG(facts.st_mode):  # reading a pipe or a device would never end
            raise ImageError("not a file")
        if facts.st_size > MAX_FILE_BYTES:
            raise ImageError(f"{facts.st_size} bytes in one file, at most {MAX_FILE_BYTES} are accepted")
        return Path(path).read_bytes()
    except OSError as error:
        raise ImageError(error.strerror or str(error)) from error


def normalize(data: bytes) -> Normalized:
    """Checks an encoded image by decoding it whole, and converts it where needed; raises `ImageError`."""
    if not data:
        raise ImageError("empty file")
    image = _load(data, check_sums=True)
    try:
        if image.format == "PNG" and data[24] != 8 and data[25] in (0, 2):
            image.info.pop("transparency", None)  # a value of that depth, unfit for the 8 bits it is now
        orientation = _orientation(image)
        kind = _kind(image, data, turned=orientation != 1)
        if kind in ("jpeg", "png"):
            return Normalized(data, kind, False, image.width, image.height)
        plain = _to_8bit(image)
        if orientation != 1:
            plain = plain.transpose(_TURNS[orientation])
        return Normalized(_encode(plain, _is_jpeg(image)), kind, True, plain.width, plain.height)
    except _DECODE_ERRORS as error:
        raise ImageError(f"cannot be converted ({_short(error)})") from error


def decode_rgb(data: bytes) -> Image.Image:
    """The pixels of a stored image, in mode RGB; raises `ImageError`."""
    return _load(data).convert("RGB")


def _load(data: bytes, check_sums: bool = False) -> Image.Image:
    """Opens and decodes a fresh object: one that failed half-way may later pass for whole."""
    try:
        image = Image.open(BytesIO(data), formats=FORMATS)
        if image.width * image.height > MAX_PIXELS:
            raise ImageError(f"{image.width}x{image.height} pixels, at most {MAX_PIXELS} are accepted")
        if check_sums and image.format == "PNG":
            Image.open(BytesIO(data), formats=FORMATS).verify()  # decoding leaves the checksums out
        image.load()
    except UnidentifiedImageError:
        raise ImageError(_unidentified(data)) from None
    except _DECODE_ERRORS as error:
        raise ImageError(_short(error)) from error
    return image


def _unidentified(data: bytes) -> str:
    if data.startswith(b"\xff\xd8\xff"):
        return "a JPEG that is damaged or of an unsupported kind (such as 12-bit or lossless)"
    if data.startswith(b"\x89PNG"):
        return "a damaged PNG"
    return f"not an image of a known format (begins with {data[:8]!r})"


def _is_jpeg(image: Image.Image) -> bool:
    return image.format in ("JPEG", "MPO")  # MPO: a JPEG with further JPEGs behind it


def _kind(image: Image.Image, data: bytes, turned: bool) -> str:
    """A word or two for the summary; exactly `jpeg` or `png` for what may be kept."""
    if _is_jpeg(image):
        kind = "jpeg" if image.mode in ("L", "RGB") else f"{image.mode.lower()} jpeg"
    elif image.format == "PNG":
        depth, color = data[24], data[25]  # of the header chunk, which is always first
        plain = depth == 8 and color in (0, 2) and image.mode in ("L", "RGB")
        names = {0: "gray", 2: "rgb", 3: "palette", 4: "gray+alpha", 6: "rgba"}
        kind = "png" if plain else f"{names[color]} png" + (f" {depth}-bit" if depth != 8 else "")
        if plain and "transparency" in image.info:
            kind = "transparent png"
    else:
        kind = (image.format or "").lower()
    return f"turned {kind}" if turned else kind


def _orientation(image: Image.Image) -> int:
    """The EXIF or XMP orientation, 1 to 8; 1 if there is none, or if the metadata are damaged."""
    try:
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
    except _DECODE_ERRORS:
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
            raise ImageError(f"a TIFF of {bits}-bit gray without a defined white (mode {image.mode})")
        peak = 2**bits - 1
    elif image.format not in ("PNG", "PPM") or image.mode == "F":
        raise ImageError(f"brightness without a defined white (mode {image.mode})")
    pixels = np.asarray(image).astype(np.uint32)
    return Image.fromarray(((pixels * 255 + peak // 2) // peak).astype(np.uint8))


def _encode(image: Image.Image, as_jpeg: bool) -> bytes:
    buffer = BytesIO()
    image.info.clear()  # else Pillow would hand on colour profiles and transparency of the original
    if as_jpeg:
        image.save(buffer, "JPEG", quality=95, subsampling=0)
    else:
        image.save(buffer, "PNG")
    return buffer.getvalue()


def _short(error: BaseException) -> str:
    """One line of at most 120 characters, without the addresses of objects."""
    if isinstance(error, ImageError):
        return str(error)
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 120 else text[:117] + "..."
