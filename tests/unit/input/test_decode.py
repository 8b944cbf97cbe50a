"""Decoded images are those that Pillow and torchvision give."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pictures
import pytest
import torch
from pictures import SAMPLINGS, decode, decode_batch, largest_difference, pillow_crop, psnr
from PIL import Image
from torchvision.transforms import v2

from ddltrain.input import _image
from ddltrain.input.decode import Sampling

# Both sides of blocks and MCUs of all kinds, with rows and columns left over.
SIZES = [(61, 45), (45, 61), (64, 48), (125, 173)]
RANDOM = Sampling(24, crop="random-resized", scale=(0.02, 1.0), ratio=(0.4, 2.5), flip=True, mode="exact")


@pytest.fixture(params=["avx2", "portable"])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test with either kind of instructions."""
    best = _image.isa()
    _image.set_isa(getattr(_image.Isa, request.param))
    if _image.isa().name != request.param:
        pytest.skip(f"this machine has no {request.param}")
    yield request.param
    _image.set_isa(best)


def fits(size: tuple[int, int], factors: tuple[int, int]) -> bool:
    """Whether `pictures.jpeg` can make it."""
    written = {0: (1, 1), 1: (2, 1), 2: (2, 2)}[SAMPLINGS[factors]]
    return pictures.num_mcus(*size, written) == pictures.num_mcus(*size, factors)


def files(contrast: float = 110) -> list[bytes]:
    kinds = [(size, factors) for size in SIZES for factors in SAMPLINGS if fits(size, factors)]
    colored = [pictures.jpeg(*size, factors, contrast=contrast) for size, factors in kinds]
    return [*colored, pictures.gray_jpeg(61, 45)]


def test_made_up_pictures_are_of_all_samplings() -> None:
    seen = {_image.info(_image.pack_jpeg(file))[4].split(",")[0] for file in files()}
    assert seen == {f"{across}x{down}" for across, down in SAMPLINGS}


def test_whole_pictures(isa: str) -> None:
    for file in files():
        assert (
            largest_difference(_image.decode_rgb(_image.pack_jpeg(file)), np.asarray(pictures.rgb(file))) <= 1
        )


@pytest.mark.parametrize("factors", [(1, 1), (2, 1), (2, 2)])
def test_whole_pictures_of_few_pixels(factors: tuple[int, int]) -> None:
    for width in range(1, 8):
        for height in range(1, 8):
            file = pictures.jpeg(width, height, factors)
            decoded = _image.decode_rgb(_image.pack_jpeg(file))
            assert largest_difference(decoded, np.asarray(pictures.rgb(file))) <= 1, (width, height)


def test_exact_crops(isa: str) -> None:
    for file in files():
        image = pictures.rgb(file)
        for key, decoded in enumerate(decode(_image.pack_jpeg(file), RANDOM, 12)):
            assert largest_difference(decoded, pillow_crop(image, RANDOM, key)) <= 1


@pytest.mark.parametrize("size", [1, 7, 16, 40])
def test_crops_of_pixels(size: int) -> None:
    sampling = Sampling(size, crop="random-resized", flip=True)
    for pixels in (pictures.picture(50, 37), pictures.picture(50, 37)[:, :, 1].copy()):
        image = Image.fromarray(pixels).convert("RGB")
        for key, decoded in enumerate(decode(_image.pack_pixels(pixels), sampling, 20)):
            assert largest_difference(decoded, pillow_crop(image, sampling, key)) <= 1


@pytest.mark.parametrize(("width", "height"), [(700, 500), (300, 900), (1, 1), (1, 90), (90, 1), (2, 3)])
@pytest.mark.parametrize("mode", ["fast", "exact"])
def test_shrinking_and_stretching_a_lot(width: int, height: int, mode: str) -> None:
    file = pictures.jpeg(width, height, (2, 2))
    for size in (5, 33):
        sampling = Sampling(size, crop="random-resized", mode=mode)
        for key, decoded in enumerate(decode(_image.pack_jpeg(file), sampling, 4)):
            wanted = pillow_crop(pictures.rgb(file), sampling, key)
            assert largest_difference(decoded, wanted) <= (1 if mode == "exact" else 24)


@pytest.mark.parametrize(("resize", "size"), [(40, 32), (32, 32), (91, 80), (9, 5)])
def test_evaluation_is_torchvisions(resize: int, size: int) -> None:
    sampling = Sampling(size, resize=resize, mode="exact")
    for file in files():
        resized = v2.functional.resize(pictures.rgb(file), [resize], antialias=True)
        wanted = np.asarray(v2.functional.center_crop(resized, [size, size]))
        (decoded,) = decode(_image.pack_jpeg(file), sampling)
        assert largest_difference(decoded, wanted) <= 1


def test_fast_crops_look_the_same(isa: str) -> None:
    sampling = Sampling(40, crop="random-resized", flip=True)
    # Pillow clips full colours before it resizes, which is not what is compared here.
    for file in files(contrast=40):
        image = pictures.rgb(file)
        for key, decoded in enumerate(decode(_image.pack_jpeg(file), sampling, 4)):
            assert psnr(decoded, pillow_crop(image, sampling, key)) > 52


def test_photos(shared_data: Path) -> None:
    exact = Sampling(224, crop="random-resized", flip=True, mode="exact")
    fast = replace(exact, mode="fast")
    likeness = []
    for path in sorted((shared_data / "imagenet-sample").glob("*.JPEG"))[::6]:
        record, image = _image.pack_jpeg(path.read_bytes()), pictures.rgb(path.read_bytes())
        assert largest_difference(_image.decode_rgb(record), np.asarray(image)) <= 1
        for key, (slow, quick) in enumerate(
            zip(decode(record, exact, 2), decode(record, fast, 2), strict=True)
        ):
            wanted = pillow_crop(image, exact, key)
            assert largest_difference(slow, wanted) <= 1
            likeness.append(psnr(quick, wanted))
    assert np.mean(likeness) >= 53


@pytest.mark.parametrize("mode", ["fast", "exact"])
@pytest.mark.parametrize("output", ["uint8", "float32", "bfloat16"])
@pytest.mark.parametrize("channels_last", [True, False])
def test_instructions_do_not_matter(mode: str, output: str, channels_last: bool) -> None:
    if (best := _image.isa()) == _image.Isa.portable:
        pytest.skip("this machine has no others")
    records = [_image.pack_jpeg(file) for file in files()] + [_image.pack_pixels(pictures.picture(24, 24))]
    kind = Sampling(1, "random-resized", flip=True, mode=mode, output=output, channels_last=channels_last)
    for size in (9, 24, 50):  # a block and a rest; without a rest; several
        sampling = replace(kind, image_size=size, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
        quick = decode_batch(records, sampling)
        _image.set_isa(_image.Isa.portable)
        plain = decode_batch(records, sampling)
        _image.set_isa(best)
        assert torch.equal(quick, plain)
