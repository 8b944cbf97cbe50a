"""Packed JPEGs keep their coefficients; what cannot be packed is refused with the reason, and damage is noticed."""

import hashlib
import io
from pathlib import Path

import numpy as np
import pictures
import pytest
from pictures import SAMPLINGS, encoded, picture, stored_planes
from PIL import Image

from ddltrain.input import _image

# What packing says of odd files; the others of their folder are no JPEGs, or packed.
REFUSED = {
    "cmyk_no_adobe.jpg": "4 color components",
    "cmyk_photo_600x397.jpg": "4 color components",
    "damaged_zero_height.jpg": "its size is 0",
    "huge_header_65535.jpg": "too large",
    "lossless_16bit_gray.jpg": "lossless",
    "made_arith_restart.jpg": "arithmetic",
    "made_truncated_half.JPEG": "cut off",
    "precision12.jpg": "12-bit",
    "non_interleaved.jpg": "progressive",
    "progressive_32.jpg": "progressive",
    "rgb_colorspace.jpg": "RGB",
}
PACKED = [
    "fill_bytes_before_eoi.jpg",
    "gray_32.jpg",
    "gray_sampling2x2.jpg",
    "icc_after_sof.jpg",
    "made_411.jpg",
    "made_q1.jpg",
    "made_q100_444.jpg",
    "made_restart_1b.jpg",
    "made_trailing_garbage.JPEG",
    "qtables16_extended.jpg",
    "restarts_33.jpg",
    "restarts_icc_flower.jpg",
    "sampling_440.jpg",
    "size_33x33.jpg",
    "size_7x7.jpg",
]


def assert_kept(file: bytes) -> bytes:
    """Packs a file; unpacked, it has the same picture, and packed again the same record."""
    record = _image.pack_jpeg(file)
    unpacked = _image.unpack(record)
    assert np.array_equal(stored_planes(unpacked), stored_planes(file))
    assert _image.pack_jpeg(unpacked) == record
    return record


@pytest.mark.parametrize("factors", SAMPLINGS)
def test_all_samplings(factors: tuple[int, int]) -> None:
    record = assert_kept(pictures.jpeg(64, 64, factors))
    sampling = f"{factors[0]}x{factors[1]},1x1,1x1"
    assert _image.info(record) == ("jpeg", 64, 64, 3, sampling)


def test_sizes() -> None:
    for width in (1, 2, 7, 8, 9, 15, 16, 17, 33, 40):
        for height in (1, 5, 8, 16, 31):
            assert_kept(pictures.jpeg(width, height, (2, 2)))
            assert_kept(pictures.jpeg(width, height))
            record = assert_kept(pictures.gray_jpeg(width, height))
            assert _image.info(record) == ("jpeg", width, height, 1, "1x1")


@pytest.mark.parametrize(
    "options",
    [
        {"quality": 1},
        {"quality": 100, "subsampling": 0},
        {"quality": 75, "optimize": True},
        {"quality": 90, "restart_marker_blocks": 1},
        {"quality": 90, "restart_marker_rows": 1},
        {"qtables": [[255] * 64, [1] * 64]},
    ],
)
def test_ways_of_writing(options: dict[str, object]) -> None:
    assert_kept(encoded(picture(83, 61), **options))


def test_noise_of_the_highest_quality() -> None:
    """Blocks with the most bits, and runs that are too long for the usual index."""
    random = np.random.default_rng(1)
    for shape in ((64, 64, 3), (16, 3000, 3)):
        assert_kept(encoded(random.integers(0, 2, shape, np.uint8) * 255, quality=100, subsampling=0))


def segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(content) + 2).to_bytes(2, "big") + content


def in_three_scans(width: int, height: int, factors: list[tuple[int, int]]) -> bytes:
    """A JPEG with a scan for each plane, made of the scans of three gray JPEGs."""
    tables, scans = b"", b""
    for i, (across, down) in enumerate(factors):
        size = -(-width * across // factors[0][0]), -(-height * down // factors[0][1])
        file = encoded(picture(*size, seed=i)[..., 0], quality=90)
        scan = file.index(b"\xff\xda")
        tables = file[: file.index(b"\xff\xc0")] + file[file.index(b"\xff\xc4") : scan]
        entropy_coded = file[scan + 10 : -2]
        scans += segment(0xDA, bytes([1, i + 1, 0, 0, 63, 0])) + entropy_coded
    planes = b"".join(bytes([i + 1, factors[i][0] << 4 | factors[i][1], 0]) for i in range(3))
    frame = b"\x08" + height.to_bytes(2, "big") + width.to_bytes(2, "big") + b"\x03" + planes
    return tables + segment(0xC0, frame) + scans + b"\xff\xd9"


@pytest.mark.parametrize(
    ("factors", "sampling"),
    [
        ([(1, 1), (1, 1), (1, 1)], "1x1"),
        ([(2, 2), (1, 1), (1, 1)], "2x2"),
        ([(2, 2), (1, 2), (1, 2)], "2x1"),  # the same as factors of 2 x 1, 1 x 1 and 1 x 1
        ([(2, 1), (2, 1), (2, 1)], "1x1"),
    ],
)
def test_a_scan_for_each_plane(factors: list[tuple[int, int]], sampling: str) -> None:
    record = assert_kept(in_three_scans(45, 37, factors))
    assert _image.info(record)[4] == f"{sampling},1x1,1x1"


@pytest.mark.parametrize(
    "factors", [[(2, 2), (2, 2), (1, 1)], [(1, 1), (2, 2), (2, 2)], [(3, 1), (1, 1), (1, 1)]]
)
def test_unusual_samplings_are_refused(factors: list[tuple[int, int]]) -> None:
    with pytest.raises(_image.Unsupported, match="sampling"):
        _image.pack_jpeg(in_three_scans(45, 37, factors))


def test_size_of_records() -> None:
    """Within one percent of the file without its metadata; small pictures become smaller."""
    for quality in (75, 96):
        file = encoded(picture(500, 400), quality=quality)
        assert len(_image.pack_jpeg(file)) < 1.01 * len(file)
    small = encoded(picture(64, 64))
    assert len(_image.pack_jpeg(small)) < 0.9 * len(small)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"progressive": True}, "progressive"), ({"keep_rgb": True}, "RGB")],
)
def test_other_kinds_of_jpeg_are_refused(options: dict[str, object], reason: str) -> None:
    with pytest.raises(_image.Unsupported, match=reason):
        _image.pack_jpeg(encoded(picture(20, 20), **options))


def test_cmyk_is_refused() -> None:
    cmyk = io.BytesIO()
    Image.new("CMYK", (9, 9)).save(cmyk, "JPEG")
    with pytest.raises(_image.Unsupported, match="4 color components"):
        _image.pack_jpeg(cmyk.getvalue())


@pytest.mark.parametrize("data", [b"", b"\xff", b"\xff\xd8", b"\x89PNG\r\n\x1a\n", bytes(100)])
def test_what_is_no_jpeg_is_refused(data: bytes) -> None:
    with pytest.raises(_image.Unsupported):
        _image.pack_jpeg(data)


def test_files_cut_off_anywhere_are_refused() -> None:
    file = encoded(picture(40, 30), restart_marker_blocks=2)
    last = file.rindex(b"\xff\xd9")
    for length in range(last):
        with pytest.raises((_image.Unsupported, _image.CorruptRecord)):
            _image.pack_jpeg(file[: min(length, last - 1)])
    assert _image.pack_jpeg(file[:last]) == _image.pack_jpeg(file)  # all of the picture is there


def test_restart_markers_out_of_order_are_refused() -> None:
    file = encoded(picture(64, 64), restart_marker_blocks=1)
    with pytest.raises(_image.CorruptRecord, match="restart marker"):
        _image.pack_jpeg(file.replace(b"\xff\xd1", b"\xff\xd2"))


def test_metadata_does_not_matter() -> None:
    plain = encoded(picture(50, 40))
    exif = encoded(picture(50, 40), exif=Image.Exif().tobytes(), comment=b"x" * 1000)
    assert _image.pack_jpeg(exif + b"trailing bytes") == _image.pack_jpeg(plain)


def test_records_cut_off_anywhere_are_noticed() -> None:
    record = _image.pack_jpeg(encoded(picture(40, 30)))
    for length in range(len(record) - 1):
        with pytest.raises(_image.CorruptRecord):
            _image.unpack(record[:length])
        with pytest.raises(_image.CorruptRecord):
            _image.decode_planes(record[:length], 0, 0, 40, 30)


def test_changed_bits_are_noticed_or_harmless() -> None:
    """No bit flip ends in anything but another picture or the one error."""
    record = _image.pack_jpeg(encoded(picture(33, 17), quality=90))
    num_noticed = 0
    for bit in range(len(record) * 8):
        damaged = bytearray(record)
        damaged[bit // 8] ^= 1 << bit % 8
        for read in (_image.unpack, lambda data: _image.decode_planes(data, 0, 0, 9, 9)):
            try:
                read(bytes(damaged))
            except _image.CorruptRecord:
                num_noticed += 1
    assert num_noticed > len(record) * 8 / 4


def test_pixels() -> None:
    for shape in ((5, 7, 3), (1, 1, 3), (4, 9)):
        pixels = np.random.default_rng(3).integers(0, 256, shape, np.uint8)
        record = _image.pack_pixels(pixels)
        assert _image.info(record)[:4] == ("pixels", shape[1], shape[0], (len(shape[2:]) and 3) or 1)
        assert record.endswith(pixels.tobytes())
        for damaged in (record[:-1], record + b"x", record[:5], b""):
            with pytest.raises(_image.CorruptRecord):
                _image.decode_planes(damaged, 0, 0, 1, 1)
        with pytest.raises(_image.CorruptRecord):
            _image.unpack(record)


@pytest.mark.parametrize("name", PACKED)
def test_odd_files_that_are_packed(shared_data: Path, name: str) -> None:
    assert_kept((shared_data / "odd" / name).read_bytes())


@pytest.mark.parametrize("name", REFUSED)
def test_odd_files_that_are_refused(shared_data: Path, name: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[name]):
        _image.pack_jpeg((shared_data / "odd" / name).read_bytes())


def test_photos(shared_data: Path) -> None:
    files = [path.read_bytes() for path in sorted((shared_data / "imagenet-sample").iterdir())[::15]]
    records = [assert_kept(file) for file in files]
    assert sum(map(len, records)) < 1.01 * sum(map(len, files))


def test_the_format_stays() -> None:
    """The codes that all records share, and how runs are cut: other bytes may mean that old data sets cannot be read."""
    corpus = Path(__file__).parents[2] / "fuzz" / "corpus"
    names = ["420", "444", "gray", "wide"]
    records = [_image.pack_jpeg((corpus / f"{name}.jpg").read_bytes()) for name in names]
    assert [hashlib.sha256(record).hexdigest()[:16] for record in records] == [
        "865223a3f04642eb",
        "ba38687ff13ae021",
        "e06c29493f809b7c",
        "3e017803ff343fb5",
    ]
