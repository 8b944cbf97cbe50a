"""Packed images: which keep their coefficients, what the others become, how they are shrunk, and that each is proven."""

import csv
import os
from collections import Counter
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ddltrain.input import _image, files, packing
from ddltrain.input.files import ImageError, read_file, read_member
from ddltrain.input.images import decode_rgb
from ddltrain.input.packing import Packed, Shape, pack_image

GENERATOR = np.random.default_rng(0)
SMOOTH = Image.fromarray(GENERATOR.integers(0, 256, (6, 8, 3), np.uint8)).resize(
    (160, 120), Image.Resampling.BICUBIC
)


def encode(image: Image.Image, image_format: str, **options: Any) -> bytes:
    buffer = BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


KEEP = Shape()


def pack(data: bytes, name: str = "x.jpg", shape: Shape = KEEP) -> Packed:
    return pack_image(data, name, shape)


def pixels_of(packed: Packed) -> np.ndarray[Any, np.dtype[np.int64]]:
    return _image.decode_rgb(packed.image).astype(np.int64)


def difference(packed: Packed, expected: Image.Image) -> int:
    return int(abs(pixels_of(packed) - np.asarray(expected.convert("RGB"))).max())


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_a_baseline_jpeg_keeps_its_coefficients(mode: str, subsampling: int) -> None:
    options = {"subsampling": subsampling} if mode == "RGB" else {}
    data = encode(SMOOTH.convert(mode), "JPEG", quality=80, comment=b"metadata", **options)
    packed = pack(data)
    assert (packed.stored, packed.notes) == ("coefficients kept", ())
    assert (packed.width, packed.height) == (160, 120)
    again = Image.open(BytesIO(_image.unpack(packed.image)))
    assert again.mode == mode
    assert again.tobytes() == Image.open(BytesIO(data)).tobytes()
    assert difference(packed, Image.open(BytesIO(data))) <= 1


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ({"progressive": True}, "progressive jpeg, encoded anew (progressive JPEG)"),
        ({"keep_rgb": True}, "baseline jpeg, encoded anew (RGB JPEG)"),
    ],
)
def test_other_jpegs_are_encoded_anew_at_high_quality(options: dict[str, Any], note: str) -> None:
    data = encode(SMOOTH, "JPEG", quality=95, **options)
    packed = pack(data)
    assert (packed.stored, packed.notes) == ("encoded anew", (note,))
    assert difference(packed, Image.open(BytesIO(data))) <= 12
    assert _image.info(packed.image)[4] == "1x1,1x1,1x1"


def test_cmyk_and_gray_become_what_they_show() -> None:
    cmyk = pack(encode(Image.new("CMYK", (80, 80), (0, 255, 255, 0)), "JPEG", quality=95))
    assert cmyk.kind == "baseline cmyk jpeg"
    assert abs(pixels_of(cmyk) - (255, 0, 0)).max() <= 3
    gray = pack(encode(SMOOTH.convert("L"), "JPEG", progressive=True))
    assert _image.info(gray.image)[3] == 1


@pytest.mark.parametrize("mode", ["L", "RGB", "P", "RGBA", "1"])
def test_small_pictures_without_loss_stay_pixels(mode: str) -> None:
    image = SMOOTH.resize((64, 48)).convert(mode)
    packed = pack(encode(image, "PNG"), "x.png")
    assert packed.stored == "pixels"
    assert difference(packed, image) == 0
    assert _image.info(packed.image)[:4] == ("pixels", 64, 48, 1 if mode in ("L", "1") else 3)


def test_larger_pictures_without_loss_become_jpegs_and_small_jpegs_stay_jpegs() -> None:
    large = pack(encode(SMOOTH.resize((65, 48)), "PNG"), "x.png")
    assert (large.stored, _image.info(large.image)[0]) == ("encoded anew", "jpeg")
    assert difference(large, SMOOTH.resize((65, 48))) <= 24
    small = pack(encode(SMOOTH.resize((8, 8)), "JPEG"))
    assert (small.stored, _image.info(small.image)[0]) == ("coefficients kept", "jpeg")


def test_exif_orientation_is_applied_and_noted() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    packed = pack(encode(SMOOTH, "JPEG", quality=95, subsampling=0, exif=exif))
    assert (packed.width, packed.height) == (120, 160)
    assert packed.notes == (packing.TURNED,)
    assert difference(packed, SMOOTH.transpose(Image.Transpose.ROTATE_270)) <= 24
    again = pack(_image.unpack(packed.image))
    assert (again.notes, again.image) == ((), packed.image)


def test_colour_profiles_are_not_handed_on() -> None:
    data = encode(SMOOTH, "JPEG", progressive=True, icc_profile=b"profile" * 100)
    assert b"profile" not in pack(data).image


@pytest.mark.parametrize(
    ("image_format", "name", "note"),
    [
        ("PNG", "x.JPEG", "png named .jpeg"),
        ("JPEG", "x.png", "jpeg named .png"),
        ("BMP", "a/x.jpg", "bmp named .jpg"),
        ("JPEG", "x.jfif", None),
        ("JPEG", "x", None),
        ("TIFF", "x.TIF", None),
    ],
)
def test_names_that_lie_are_noted(image_format: str, name: str, note: str | None) -> None:
    assert pack(encode(SMOOTH, image_format), name).notes == ((note,) if note else ())


@pytest.mark.parametrize(
    ("shape", "size", "expected"),
    [
        (Shape(), (500, 375), None),
        (Shape("shorter", 256), (500, 375), (341, 256)),
        (Shape("shorter", 256), (375, 500), (256, 341)),
        (Shape("shorter", 256), (256, 4000), None),
        (Shape("shorter", 256), (200, 300), None),
        (Shape("longer", 500), (1000, 375), (500, 188)),
        (Shape("longer", 500), (500, 500), None),
        (Shape("longer", 5), (1, 4000), (1, 5)),
    ],
)
def test_sizes_are_only_ever_made_smaller(
    shape: Shape, size: tuple[int, int], expected: tuple[int, int] | None
) -> None:
    assert shape.shrunk(*size) == expected


def test_shrunk_pictures_are_antialiased_and_the_others_kept() -> None:
    data = encode(SMOOTH, "JPEG", quality=95, subsampling=0)
    packed = pack(data, shape=Shape("shorter", 90))
    assert (packed.stored, packed.width, packed.height) == ("shrunk", 120, 90)
    expected = Image.open(BytesIO(data)).resize((120, 90), Image.Resampling.LANCZOS)
    assert abs(pixels_of(packed) - np.asarray(expected)).mean() < 4
    assert packed.image == packing._image.pack_jpeg(encode(expected, "JPEG", quality=90))
    coarse = pack(data, shape=Shape("shorter", 90, quality=30))
    assert len(coarse.image) < len(packed.image)
    assert pack(data, shape=Shape("longer", 160)).stored == "coefficients kept"
    assert pack(data, shape=Shape(quality=30)).image == pack(data).image  # nothing is encoded anew for it
    tiny = pack(encode(SMOOTH, "PNG"), "x.png", Shape("longer", 60))
    assert tiny.stored == "pixels"
    assert difference(tiny, SMOOTH.resize((60, 45), Image.Resampling.LANCZOS)) == 0


def test_turned_pictures_are_shrunk_by_the_side_that_they_have_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 8
    packed = pack(encode(SMOOTH.resize((160, 100)), "JPEG", exif=exif), shape=Shape("longer", 80))
    assert (packed.width, packed.height) == (50, 80)


def test_a_record_that_decodes_differently_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(SMOOTH, "JPEG")
    real = _image.decode_rgb

    def one_wrong(by: int) -> Any:
        def decode(packed: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
            pixels = real(packed).copy()
            pixels[7, 9, 1] = int(np.asarray(Image.open(BytesIO(data)))[7, 9, 1]) - by
            return pixels

        return decode

    monkeypatch.setattr(packing._image, "decode_rgb", one_wrong(1))
    pack(data)
    monkeypatch.setattr(packing._image, "decode_rgb", one_wrong(2))
    with pytest.raises(ImageError, match="decodes differently from Pillow, by up to 2 levels"):
        pack(data)
    monkeypatch.setattr(packing._image, "decode_rgb", lambda packed: real(packed)[:-1])
    with pytest.raises(ImageError, match="packed as 160x119 pixels, not 160x120"):
        pack(data)


def test_a_damaged_scan_is_refused_not_guessed() -> None:
    data = encode(SMOOTH, "JPEG", quality=95)
    start = data.index(b"\xff\xda") + 40
    faults = Counter()
    for place in range(start, len(data) - 60, 97):
        damaged = data[:place] + b"\x00\x00\x00\x00\xa5\x5a\x00\x00" + data[place + 8 :]
        Image.open(BytesIO(damaged)).load()  # no error: libjpeg warns, and fills with gray
        try:
            faults[pack(damaged).stored] += 1
        except ImageError as error:
            faults[error.fault] += 1
    assert faults["corrupt"] > 0
    # Kept: damage that left another picture, but a valid one. Encoded anew: brightness beyond black and white, which is clipped.
    assert set(faults) <= {"corrupt", "coefficients kept", "encoded anew"}


def test_files_that_cannot_be_read_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    for path, reason in ((tmp_path, "not a file"), (tmp_path / "pipe.jpg", "not a file")):
        with pytest.raises(ImageError, match=reason):
            read_file(path)
    for read in (
        lambda name: read_file(tmp_path / name),
        lambda name: read_member(str(tmp_path / name), 0, 1),
    ):
        with pytest.raises(ImageError, match="No such file"):
            read("none.jpg")
    (tmp_path / "big.jpg").write_bytes(bytes(11))
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 10)
    with pytest.raises(ImageError, match="11 bytes in one file") as caught:
        read_file(tmp_path / "big.jpg")
    assert caught.value.fault == "bomb"
    with pytest.raises(ImageError, match="11 bytes in one file"):
        read_member(str(tmp_path / "big.jpg"), 0, 11)
    assert read_member(str(tmp_path / "big.jpg"), 3, 8) == bytes(8)


# What must become of those of the odd files that are not simply kept, by what their table says of them.
FAULTS = {
    "damaged_zero_length.jpg": "empty",
    "huge_header_65535.jpg": "bomb",
    "lossless_16bit_gray.jpg": "unsupported",
    "made_bomb_30000x30000.png": "bomb",
    "made_html_named.jpg": "no image",
    "made_zeros.jpg": "no image",
    "precision12.jpg": "unsupported",
    "damaged_zero_height.jpg": "corrupt",
    "png_broken.png": "corrupt",
}


def test_odd_files_come_out_right_or_are_refused(shared_data: Path) -> None:
    folder = shared_data / "odd"
    with (folder / "TABLE.tsv").open() as table:
        rows = list(csv.DictReader(table, delimiter="\t"))
    assert len(rows) == 79
    for row in rows:
        name, data = row["file"], (folder / row["file"]).read_bytes()
        if row["pil_convert_RGB"] != "ok":
            with pytest.raises(ImageError) as caught:
                pack(data, name)
            assert caught.value.fault == FAULTS.get(name, "truncated"), name
            continue
        packed = pack(data, name)
        is_turned = row["exif_orientation"] not in ("", "1")
        size = tuple(map(int, row["size_WxH"].split("x")))
        size = size[::-1] if row["exif_orientation"] in ("5", "6", "7", "8") else size
        assert (packed.width, packed.height) == size, name
        assert (packing.TURNED in packed.notes) == is_turned, name
        features = row["jpeg_features"]
        is_plain = features.startswith(("baseline 1c", "baseline 3c", "extended 3c")) and not is_turned
        if is_plain and name != "rgb_colorspace.jpg":
            assert packed.stored == "coefficients kept", name
            if size[0] * size[1] < 4_000_000:
                assert difference(packed, Image.open(BytesIO(data))) <= 1, name
        else:
            is_small = row["pil_format"] != "JPEG" and max(size) <= packing.MAX_PIXELS_SIDE
            assert packed.stored == ("pixels" if is_small else "encoded anew"), name
            # Quality 95 changes little in a photo; sharp edges, of drawings, ring more.
            change = abs(pixels_of(packed) - np.asarray(decode_rgb(data)))
            assert change.mean() < 4, name
        is_named_right = files_format(name) == row["pil_format"]
        assert any(" named " in note for note in packed.notes) == (not is_named_right), name


def files_format(name: str) -> str:
    return "PNG" if name.endswith(".png") else "JPEG"
