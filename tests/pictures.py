"""Pictures that tests make up, and what Pillow makes of them."""

import io
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image

from ddltrain.input.decode import BatchDecoder, Sampling

# Sampling factors of luma, and what Pillow's encoder calls the JPEG whose coded blocks can be read as such a one.
SAMPLINGS = {(1, 1): 0, (2, 1): 1, (2, 2): 2, (1, 2): 1, (4, 1): 2, (1, 4): 2}


def picture(width: int, height: int, seed: int = 0, contrast: float = 110) -> np.ndarray:
    """Waves of several colours and some noise: uint8 [height, width, 3]."""
    rng = np.random.default_rng([seed, width, height])
    y, x = np.mgrid[:height, :width]
    waves = [
        np.sin(x * rng.uniform(-0.3, 0.3) + y * rng.uniform(-0.3, 0.3) + rng.uniform(0, 6)) for _ in range(3)
    ]
    noise = rng.normal(0, contrast / 9, (height, width, 3))
    return np.clip(128 + contrast * np.stack(waves, 2) + noise, 0, 255).astype(np.uint8)


def jpeg(
    width: int, height: int, factors: tuple[int, int] = (1, 1), seed: int = 0, contrast: float = 110
) -> bytes:
    """A JPEG of these sampling factors.

    Pillow writes the first three kinds of `SAMPLINGS` only. The others have as many blocks in an MCU as one of those, so a file becomes
    one of them by changing its factors, where the number of MCUs stays; the picture's blocks end up elsewhere, which does not matter.
    """
    file = io.BytesIO()
    pixels = picture(width, height, seed, contrast)
    Image.fromarray(pixels).save(file, "JPEG", quality=90, subsampling=SAMPLINGS[factors])
    data = bytearray(file.getvalue())
    frame = data.index(b"\xff\xc0")
    written = (data[frame + 11] >> 4, data[frame + 11] & 15)
    assert num_mcus(width, height, written) == num_mcus(width, height, factors)
    data[frame + 11] = factors[0] << 4 | factors[1]
    return bytes(data)


def num_mcus(width: int, height: int, factors: tuple[int, int]) -> int:
    return -(-width // (8 * factors[0])) * -(-height // (8 * factors[1]))


def encoded(pixels: np.ndarray, **options: object) -> bytes:
    """A JPEG as Pillow writes it with these options."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", **options)
    return file.getvalue()


def stored_planes(file: bytes) -> np.ndarray:
    """What Pillow decodes, without conversion of colors: [height, width] or [height, width, 3]."""
    image = Image.open(io.BytesIO(file))
    if image.mode == "RGB":
        image.draft("YCbCr", image.size)
    return np.asarray(image)


def gray_jpeg(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture(width, height)).convert("L").save(file, "JPEG", quality=90)
    return file.getvalue()


def rgb(file: bytes) -> Image.Image:
    """The picture as Pillow decodes it."""
    return Image.open(io.BytesIO(file)).convert("RGB")


def decode_batch(
    records: Sequence[bytes], sampling: Sampling, num_threads: int = 1, seed: int = 1
) -> torch.Tensor:
    """Images of records, whose keys are 0, 1, ...: [n, 3, size, size]."""
    sizes = np.array([len(record) for record in records])
    out = sampling.empty_batch(len(records))
    block = np.frombuffer(b"".join(records), np.uint8)
    with BatchDecoder(num_threads) as decoder:
        ticket = decoder.submit(
            block, np.cumsum(sizes) - sizes, sizes, np.arange(len(records)), sampling, seed, 0, out
        )
        ticket.wait()
    return out


def decode(record: bytes, sampling: Sampling, num_keys: int = 1) -> list[np.ndarray]:
    """Images of one record, with keys 0, 1, ...: [size, size, 3] each."""
    return list(decode_batch([record] * num_keys, sampling).permute(0, 2, 3, 1).numpy())


def pillow_crop(image: Image.Image, sampling: Sampling, key: int, seed: int = 1) -> np.ndarray:
    """What `decode` should give, by Pillow."""
    crop, size = sampling.draw(*image.size, seed, 0, key), sampling.image_size
    box = (crop.left, crop.top, crop.right, crop.bottom)
    pixels = np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=box))
    return pixels[:, ::-1] if crop.flip else pixels


def largest_difference(one: np.ndarray, other: np.ndarray) -> int:
    return int(np.abs(one.astype(int) - other.astype(int)).max())


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    """Likeness in decibels; the more the better."""
    error = np.mean((one.astype(float) - other.astype(float)) ** 2)
    return float(10 * np.log10(255**2 / max(error, 1e-9)))
