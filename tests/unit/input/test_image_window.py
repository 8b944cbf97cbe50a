"""Windows of packed JPEGs have the samples of libjpeg, to the bit."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pictures
import pytest
from pictures import SAMPLINGS, encoded, picture, stored_planes

from ddltrain.input import _image


@pytest.fixture(params=["avx2", "portable"], autouse=True)
def isa(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs every test with either kind of instructions."""
    best = _image.isa()
    _image.set_isa(_image.Isa.__members__[request.param])
    if _image.isa().name != request.param:
        pytest.skip(f"this machine has no {request.param}")
    yield
    _image.set_isa(best)


def whole_planes(record: bytes) -> list[np.ndarray]:
    _, width, height, _, _ = _image.info(record)
    planes = _image.decode_planes(record, 0, 0, width, height)
    assert all(place == [0, 0] for _, *place in planes)
    return [samples for samples, _, _ in planes]


def assert_libjpegs(file: bytes) -> None:
    """All planes that Pillow shows as they are stored: those that have a sample for each pixel."""
    expected = stored_planes(file)
    planes = whole_planes(_image.pack_jpeg(file))
    assert np.array_equal(planes[0], expected if expected.ndim == 2 else expected[..., 0])
    for i in range(1, len(planes)):
        if planes[i].shape == expected.shape[:2]:
            assert np.array_equal(planes[i], expected[..., i])


def assert_windows(record: bytes, num_windows: int) -> None:
    """Windows have the samples of the whole picture: all that lie under them, of each plane."""
    _, width, height, _, sampling = _image.info(record)
    factors = [[int(word) for word in plane.split("x")] for plane in sampling.split(",")]
    whole = whole_planes(record)
    random = np.random.default_rng(width * 100 + height)
    for _ in range(num_windows):
        left, top = int(random.integers(0, width)), int(random.integers(0, height))
        right, bottom = int(random.integers(left, width)) + 1, int(random.integers(top, height)) + 1
        planes = _image.decode_planes(record, left, top, right - left, bottom - top)
        for (samples, x, y), plane, (across, down) in zip(planes, whole, factors, strict=True):
            step_x, step_y = factors[0][0] // across, factors[0][1] // down
            assert x <= left // step_x
            assert y <= top // step_y
            assert x + samples.shape[1] >= -(-right // step_x)
            assert y + samples.shape[0] >= -(-bottom // step_y)
            assert np.array_equal(samples, plane[y : y + samples.shape[0], x : x + samples.shape[1]])


@pytest.mark.parametrize("factors", SAMPLINGS)
def test_all_samplings(factors: tuple[int, int]) -> None:
    file = pictures.jpeg(128, 64, factors)
    assert_libjpegs(file)
    assert_windows(_image.pack_jpeg(file), 40)


def test_sizes() -> None:
    for width in (1, 2, 7, 8, 9, 16, 17, 40):
        for height in (1, 3, 8, 15, 24, 31):
            for file in (
                pictures.jpeg(width, height),
                pictures.jpeg(width, height, (2, 2)),
                pictures.gray_jpeg(width, height),
            ):
                assert_libjpegs(file)
                assert_windows(_image.pack_jpeg(file), 3)


@pytest.mark.parametrize("quality", [1, 5, 30, 60, 96, 100])
def test_qualities(quality: int) -> None:
    """From blocks with nothing but a mean to blocks with everything."""
    assert_libjpegs(encoded(picture(200, 150), quality=quality, subsampling=0))


def test_extreme_coefficients() -> None:
    """Samples far out of range are clamped."""
    random = np.random.default_rng(4)
    hard = random.integers(0, 2, (64, 96, 3), np.uint8) * 255
    for tables in ([[1] * 64], [[255] * 64], [list(range(1, 256, 4))]):
        file = encoded(hard, qtables=tables, subsampling=0)
        assert_libjpegs(file)


def test_windows_are_clipped() -> None:
    record = _image.pack_jpeg(pictures.jpeg(50, 40))
    whole = whole_planes(record)
    for samples, plane in zip(_image.decode_planes(record, -9, -1000, 5000, 2000), whole, strict=True):
        assert np.array_equal(samples[0], plane)
    for window in ((50, 0, 1, 1), (0, 40, 1, 1), (-5, 0, 5, 1), (0, 0, 0, 1)):
        with pytest.raises(ValueError, match="outside"):
            _image.decode_planes(record, *window)


def test_one_decoder_takes_any_records() -> None:
    """Nothing of one picture, nor of a damaged one, is left in the next."""
    pack = _image.pack_jpeg
    files = [encoded(picture(90, 70)), pictures.gray_jpeg(20, 30), encoded(picture(64, 64), quality=5)]
    records = [pack(file) for file in files]
    damaged = bytearray(records[0])
    damaged[-1500:-1000] = bytes(500)
    expected = [_image.decode_rgb(record) for record in records]
    with pytest.raises(_image.CorruptRecord):
        _image.decode_rgb(bytes(damaged))
    for record, pixels in zip(records[::-1], expected[::-1], strict=True):
        assert np.array_equal(_image.decode_rgb(record), pixels)


def test_photos(shared_data: Path) -> None:
    for path in sorted((shared_data / "imagenet-sample").iterdir())[::20]:
        file = path.read_bytes()
        assert_libjpegs(file)
        assert_windows(_image.pack_jpeg(file), 5)
