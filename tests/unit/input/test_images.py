"""What Pillow makes of image files: which pixels, of which kind, and what is refused."""

import struct
import zlib
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ddltrain.input import images
from ddltrain.input.files import ImageError
from ddltrain.input.images import decode, decode_rgb

QUADRANTS = np.zeros((48, 64, 3), np.uint8)  # a different colour in each corner
QUADRANTS[:24, :32], QUADRANTS[:24, 32:], QUADRANTS[24:, :32] = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def encode(image: Image.Image, image_format: str, **options: Any) -> bytes:
    buffer = BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


def pixels_of(data: bytes) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.asarray(decode_rgb(data)).astype(np.int64)


def raw_png(depth: int, color: int, row: bytes, width: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG of one row, of a kind that Pillow cannot write."""
    header = struct.pack(">IIBBBBB", width, 1, depth, color, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(b"\0" + row)), (b"IEND", b"")]
    made = (struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d)) for t, d in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(made)


def only_text(value: object) -> str:
    return value if isinstance(value, str) else ""


@pytest.mark.parametrize(
    ("image_format", "mode", "options", "kind"),
    [
        ("JPEG", "RGB", {}, "baseline jpeg"),
        ("JPEG", "L", {}, "baseline gray jpeg"),
        ("JPEG", "RGB", {"progressive": True}, "progressive jpeg"),
        ("JPEG", "L", {"progressive": True}, "progressive gray jpeg"),
        ("JPEG", "CMYK", {}, "baseline cmyk jpeg"),
        ("PNG", "RGB", {}, "rgb png"),
        ("PNG", "1", {}, "gray png 1-bit"),
        ("PNG", "RGBA", {}, "rgba png"),
        ("PNG", "RGB", {"transparency": (1, 2, 3)}, "transparent rgb png"),
        ("GIF", "RGB", {}, "gif"),
        ("TIFF", "RGB", {}, "tiff"),
        ("WEBP", "RGB", {"lossless": True}, "webp"),
        ("BMP", "RGB", {}, "bmp"),
        ("PPM", "RGB", {}, "ppm"),
    ],
)
def test_every_kind_has_its_name_and_its_pixels(
    image_format: str, mode: str, options: dict[str, Any], kind: str
) -> None:
    image = Image.fromarray(QUADRANTS).convert(mode)
    picture = decode(encode(image, image_format, **options))
    assert (picture.kind, picture.orientation) == (kind, 1)
    assert picture.is_jpeg == (image_format == "JPEG")
    if image_format != "JPEG":
        expected = np.asarray(image.convert("RGB"))
        assert (pixels_of(encode(image, image_format, **options)) == expected).all()


def test_a_jpeg_with_junk_before_its_frame_has_its_kind() -> None:
    data = encode(Image.fromarray(QUADRANTS), "JPEG")
    assert decode(data[:2] + b"\xff\xff\xff" + data[3:]).kind == "baseline jpeg"


def test_pure_red_in_cmyk_stays_red() -> None:
    red = Image.new("CMYK", (64, 48), (0, 255, 255, 0))
    for image_format in ("JPEG", "TIFF"):
        data = encode(red, image_format)
        assert abs(pixels_of(data) - (255, 0, 0)).max() <= 3, image_format


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("gray 16", raw_png(16, 0, struct.pack(">4H", 0, 128, 25700, 65535), 4), [0, 0, 100, 255]),
        ("gray 2", raw_png(2, 0, bytes([0b00011011]), 4), [0, 85, 170, 255]),
        ("gray 1", raw_png(1, 0, bytes([0b01000000]), 2), [0, 255]),
        (
            "gray 8 with a transparent value",
            raw_png(8, 0, bytes([10, 20]), 2, (b"tRNS", b"\0\x0a")),
            [255, 20],
        ),
        ("gray and alpha", encode(Image.new("LA", (2, 1), (0, 51)), "PNG"), [204, 204]),
        ("pgm 16", b"P5 2 1 65535\n" + struct.pack(">2H", 65535, 1799), [255, 7]),
        ("pgm 10", b"P5 2 1 1023\n" + struct.pack(">2H", 1023, 512), [255, 128]),
        ("tiff 16", encode(Image.fromarray(np.array([[0, 25700, 65535]], np.uint16)), "TIFF"), [0, 100, 255]),
    ],
    ids=only_text,
)
def test_gray_of_any_depth_comes_out_right(name: str, data: bytes, expected: list[int]) -> None:
    assert pixels_of(data)[0].tolist() == [[value] * 3 for value in expected], name


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        (
            "rgb 16",
            raw_png(16, 2, struct.pack(">6H", 65535, 0, 0, 0, 25700, 0), 2),
            [[255, 0, 0], [0, 100, 0]],
        ),
        (
            "rgb 16 with a transparent value",  # which is (200, 0, 0) of 65535, not of 255
            raw_png(16, 2, struct.pack(">3H", 200 * 257, 0, 0), 1, (b"tRNS", struct.pack(">3H", 200, 0, 0))),
            [[200, 0, 0]],
        ),
        (
            "palette with transparency",
            raw_png(8, 3, b"\0\1", 2, (b"PLTE", bytes([9, 9, 9, 255, 0, 0])), (b"tRNS", bytes([0, 128]))),
            [[255, 255, 255], [255, 127, 127]],
        ),
        ("rgba", encode(Image.new("RGBA", (1, 1), (255, 0, 0, 51)), "PNG"), [[255, 204, 204]]),
    ],
    ids=only_text,
)
def test_colour_of_any_depth_on_white_comes_out_right(
    name: str, data: bytes, expected: list[list[int]]
) -> None:
    assert pixels_of(data)[0].tolist() == expected, name


UPRIGHT = {
    1: QUADRANTS,
    2: QUADRANTS[:, ::-1],
    3: QUADRANTS[::-1, ::-1],
    4: QUADRANTS[::-1],
    5: QUADRANTS.transpose(1, 0, 2),
    6: np.rot90(QUADRANTS, -1),
    7: QUADRANTS[::-1, ::-1].transpose(1, 0, 2),
    8: np.rot90(QUADRANTS),
}


@pytest.mark.parametrize("orientation", [0, *UPRIGHT, 9])
@pytest.mark.parametrize("image_format", ["JPEG", "PNG"])
def test_exif_orientation_is_applied_once(orientation: int, image_format: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 95, "subsampling": 0} if image_format == "JPEG" else {}
    data = encode(Image.fromarray(QUADRANTS), image_format, exif=exif, **options)
    expected = UPRIGHT.get(orientation, QUADRANTS)
    pixels = pixels_of(data)
    assert pixels.shape == expected.shape
    assert abs(pixels - expected).mean() < 3
    assert decode(data).orientation == (orientation if orientation in UPRIGHT else 1)


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("cut", [1, 2, 50])
def test_a_cut_jpeg_is_refused(progressive: bool, cut: int) -> None:
    data = encode(Image.fromarray(QUADRANTS), "JPEG", progressive=progressive)
    with pytest.raises(ImageError, match="truncated") as caught:
        decode(data[:-cut])
    assert caught.value.fault == "truncated"


def test_a_flipped_bit_in_a_png_is_refused() -> None:
    data = bytearray(encode(Image.fromarray(QUADRANTS), "PNG"))
    for place in range(8, len(data), 7):
        damaged = bytearray(data)
        damaged[place] ^= 4
        with pytest.raises(ImageError):
            decode(bytes(damaged))


def test_bombs_are_refused_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_PIXELS", 64 * 48 - 1)
    with pytest.raises(ImageError, match="64x48 pixels, at most 3071") as caught:
        decode(encode(Image.fromarray(QUADRANTS), "PNG"))
    assert caught.value.fault == "bomb"


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "empty"),
        (b"<html></html>", "no image"),
        (bytes(8192), "no image"),
        (b"\xff\xd8\xff", "corrupt"),
        (b"\x89PNG\r\n\x1a\n", "corrupt"),
        (bytes.fromhex("ffd8ffc3000b1000010001011100ffd9"), "unsupported"),  # lossless, 16 bits
    ],
)
def test_what_is_no_image_is_refused(data: bytes, fault: str) -> None:
    with pytest.raises(ImageError) as caught:
        decode(data)
    assert "0x" not in str(caught.value)  # no address of an object: messages must be the same each time
    assert caught.value.fault == fault


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_brightness_without_a_white_is_refused(kind: type) -> None:
    with pytest.raises(ImageError, match="without a defined white"):
        decode_rgb(encode(Image.fromarray(np.ones((2, 2), kind)), "TIFF"))
