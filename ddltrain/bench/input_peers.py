"""Routes of DALI and FFCV for the input benchmark, where they can be imported. They see the same files, but draw windows of their own."""

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ddltrain.bench.input_pictures import Pictures
from ddltrain.bench.input_routes import BATCH_IMAGES, Route
from ddltrain.errors import DataError
from ddltrain.input.decode import Sampling

PeerRoute = Callable[[Sampling, int], Route]  # for so many threads

_JPEG_MAGIC = b"\xff\xd8"
_MIN_PAGE_BITS = 21  # FFCV's least page; a picture must fit one


def open_peers(pictures: Pictures, folder: Path, max_threads: int) -> tuple[dict[str, PeerRoute], list[str]]:
    """The peers that are there, by name, and a line for each that is left out.

    Args:
        folder: where FFCV may write its copy of the pictures.
        max_threads: of all routes that will be made.
    """
    peers: dict[str, PeerRoute] = {}
    left_out = []
    try:
        peers["dali"] = open_dali(pictures)
    except ImportError as error:
        left_out.append(f"dali: {error}")
    try:
        peers["ffcv"] = open_ffcv(pictures, folder / "pictures.beton", max_threads)
    except (ImportError, DataError) as error:
        left_out.append(f"ffcv: {error}")
    return peers, left_out


def open_dali(pictures: Pictures) -> PeerRoute:
    """DALI on the processor. Raises ImportError."""
    from nvidia.dali import Pipeline, fn

    files = [np.frombuffer(file, np.uint8) for file in pictures.files]

    def batches() -> Iterator[list[np.ndarray]]:
        for first in range(0, len(files), BATCH_IMAGES):
            yield files[first : first + BATCH_IMAGES]

    def images(sampling: Sampling) -> Any:
        # The source ends with each epoch, so that nothing is read ahead while others are timed.
        encoded = fn.external_source(source=batches, cycle="raise", no_copy=True)
        size = sampling.image_size
        if sampling.crop == "center":
            whole = fn.resize(fn.decoders.image(encoded), resize_shorter=sampling.resize)
            return fn.crop(whole, crop=(size, size))
        window = fn.decoders.image_random_crop(
            encoded, random_area=list(sampling.scale), random_aspect_ratio=list(sampling.ratio)
        )
        return fn.flip(fn.resize(window, size=[size, size]), horizontal=fn.random.coin_flip())

    def make(sampling: Sampling, num_threads: int) -> Route:
        pipeline = Pipeline(batch_size=BATCH_IMAGES, num_threads=num_threads, device_id=None)
        with pipeline:
            pipeline.set_outputs(images(sampling))
        pipeline.build()

        def run(epoch: int) -> None:
            with contextlib.suppress(StopIteration):
                while True:
                    pipeline.run()
            pipeline.reset()

        return run

    return make


def open_ffcv(pictures: Pictures, beton: Path, max_threads: int) -> PeerRoute:
    """FFCV over a file of its own with the JPEG files as they are. Raises ImportError, and DataError where some are no JPEGs."""
    os.environ.setdefault("NUMBA_NUM_THREADS", str(max_threads))  # else there are as many as cores
    from ffcv.fields.rgb_image import CenterCropRGBImageDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip

    if num_others := sum(not file.startswith(_JPEG_MAGIC) for file in pictures.files):
        raise DataError(f"reads JPEG files only, and {num_others} pictures are none")
    write_beton(pictures, beton)

    def make(sampling: Sampling, num_threads: int) -> Route:
        size = (sampling.image_size, sampling.image_size)
        if sampling.crop == "center":
            operations = [CenterCropRGBImageDecoder(size, ratio=sampling.image_size / sampling.resize)]
        else:
            window = RandomResizedCropRGBImageDecoder(size, scale=sampling.scale, ratio=sampling.ratio)
            operations = [window, RandomHorizontalFlip()]
        loader = Loader(
            str(beton),
            batch_size=BATCH_IMAGES,
            num_workers=num_threads,
            os_cache=True,
            order=OrderOption.SEQUENTIAL,
            pipelines={"image": operations},
            drop_last=False,
        )
        torch.set_num_threads(1)  # FFCV changes it, and so for all routes

        def run(epoch: int) -> None:
            for _ in loader:
                pass
            torch.set_num_threads(1)

        return run

    return make


def write_beton(pictures: Pictures, beton: Path) -> None:
    """Writes JPEG files into FFCV's format without encoding them anew, which its own field would do."""
    from ffcv.fields.rgb_image import IMAGE_MODES, RGBImageField
    from ffcv.writer import DatasetWriter

    def encode(destination: Any, place: int, allocate: Callable[[int], tuple[int, np.ndarray]]) -> None:
        destination["mode"] = IMAGE_MODES["jpg"]
        destination["width"], destination["height"] = pictures.shapes[place]
        destination["data_ptr"], storage = allocate(len(pictures.files[place]))
        storage[:] = np.frombuffer(pictures.files[place], np.uint8)

    field = RGBImageField()
    field.encode = encode
    page_bits = max(_MIN_PAGE_BITS, max(map(len, pictures.files)).bit_length())
    writer = DatasetWriter(str(beton), {"image": field}, page_size=1 << page_bits, num_workers=1)
    with contextlib.redirect_stderr(io.StringIO()):  # a progress bar
        writer.from_indexed_dataset([(place,) for place in range(len(pictures))])
