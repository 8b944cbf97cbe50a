"""Batches: threads, memory, forms of output, damaged records."""

import threading
from dataclasses import replace

import numpy as np
import pictures
import pytest
import torch

from ddltrain.errors import DataError
from ddltrain.input import _image
from ddltrain.input.decode import BatchDecoder, RecordError, Sampling, Ticket

SAMPLING = Sampling(20, crop="random-resized", flip=True, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))


@pytest.fixture(scope="module")
def records() -> list[bytes]:
    """Twenty pictures of different sizes and kinds."""
    photos = [
        _image.pack_jpeg(pictures.jpeg(40 + number, 70 - number, ((1, 1), (2, 2))[number % 2], number))
        for number in range(14)
    ]
    small = [_image.pack_pixels(pictures.picture(20 + number % 3, 20, number)) for number in range(5)]
    return [*photos, *small, _image.pack_jpeg(pictures.gray_jpeg(33, 44))]


def submit(
    decoder: BatchDecoder, records: list[bytes], sampling: Sampling, out: torch.Tensor, epoch: int = 0
) -> Ticket:
    sizes = np.array([len(record) for record in records], np.int64)
    block = np.frombuffer(b"".join(records), np.uint8)
    keys = np.arange(len(records))
    return decoder.submit(block, np.cumsum(sizes) - sizes, sizes, keys, sampling, 1, epoch, out)


def test_threads_do_not_matter(records: list[bytes]) -> None:
    one = pictures.decode_batch(records, SAMPLING, num_threads=1)
    assert torch.equal(one, pictures.decode_batch(records, SAMPLING, num_threads=2))
    assert torch.equal(one, pictures.decode_batch(records, SAMPLING, num_threads=7))
    assert len({image.numpy().tobytes() for image in one}) == len(records)


def test_the_batch_does_not_matter(records: list[bytes]) -> None:
    together = pictures.decode_batch(records, SAMPLING)
    block = np.frombuffer(b"".join(records), np.uint8)
    sizes = np.array([len(record) for record in records])
    order = np.random.default_rng(1).permutation(len(records))
    out = SAMPLING.empty_batch(len(records))
    with BatchDecoder(3) as decoder:
        starts = np.cumsum(sizes) - sizes
        decoder.submit(block, starts[order], sizes[order], order, SAMPLING, 1, 0, out).wait()
    assert torch.equal(out, together[torch.from_numpy(order)])


@pytest.mark.parametrize("mode", ["fast", "exact"])
def test_forms_of_output(records: list[bytes], mode: str) -> None:
    levels = pictures.decode_batch(records, replace(SAMPLING, mode=mode))
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (SAMPLING.mean, SAMPLING.std))
    normalized = (levels.double() / 255 - mean) / std
    for channels_last in (True, False):
        sampling = replace(SAMPLING, mode=mode, channels_last=channels_last)
        assert torch.equal(pictures.decode_batch(records, sampling), levels)
        float32 = pictures.decode_batch(records, replace(sampling, output="float32"))
        assert torch.allclose(float32.double(), normalized, rtol=0, atol=2e-6)
        bfloat16 = pictures.decode_batch(records, replace(sampling, output="bfloat16"))
        assert torch.equal(bfloat16, float32.to(torch.bfloat16))


@pytest.mark.parametrize("channels_last", [True, False])
def test_bfloat16_halves_go_to_even(channels_last: bool) -> None:
    halves = Sampling(16, output="bfloat16", mean=(0.5 / 255,) * 3, std=(1 / 255,) * 3)
    sampling = replace(
        halves, channels_last=channels_last
    )  # rows of 48 values, or 16: with and without vectors
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    images = pictures.decode_batch([_image.pack_pixels(levels)], sampling)
    wanted = (torch.arange(256.0) - 0.5).view(1, 1, 16, 16)
    assert torch.equal(images, wanted.to(torch.bfloat16).expand_as(images))


def test_several_batches_under_way(records: list[bytes]) -> None:
    outs = [SAMPLING.empty_batch(len(records)) for _ in range(6)]
    with BatchDecoder(2) as decoder:
        tickets = [submit(decoder, records, SAMPLING, out, epoch) for epoch, out in enumerate(outs)]
        for ticket in reversed(tickets):
            ticket.wait()
        assert all(ticket.is_done() for ticket in tickets)
        again = SAMPLING.empty_batch(len(records))
        submit(decoder, records, SAMPLING, again, epoch=4).wait()
    assert torch.equal(again, outs[4])
    assert len({out.numpy().tobytes() for out in outs}) == 6


def test_no_threads() -> None:
    with pytest.raises(ValueError, match="a thread or more"):
        BatchDecoder(0)


def test_an_empty_batch() -> None:
    with BatchDecoder(1) as decoder:
        submit(decoder, [], SAMPLING, SAMPLING.empty_batch(0)).wait()


@pytest.mark.parametrize("num_threads", [1, 4])
def test_the_first_damaged_record_is_named(records: list[bytes], num_threads: int) -> None:
    damaged = [*records]
    damaged[7], damaged[11], damaged[15] = records[7][:90], b"", b"\x07" + records[15][1:]
    with pytest.raises(DataError, match=r"^image 7 of the batch does not decode: .*") as caught:
        pictures.decode_batch(damaged, SAMPLING, num_threads)
    assert isinstance(caught.value, RecordError)
    assert caught.value.place == 7


def test_a_damaged_record_leaves_the_others_and_the_decoder_whole(records: list[bytes]) -> None:
    damaged = [records[0], records[1][:50], *records[2:]]
    out, wanted = SAMPLING.empty_batch(len(records)), pictures.decode_batch(records, SAMPLING)
    with BatchDecoder(2) as decoder:
        ticket = submit(decoder, damaged, SAMPLING, out)
        with pytest.raises(RecordError):
            ticket.wait()
        assert torch.equal(out[0], wanted[0])
        assert torch.equal(out[2:], wanted[2:])
        submit(decoder, records, SAMPLING, out).wait()
    assert torch.equal(out, wanted)


@pytest.mark.parametrize(("start", "size"), [(-1, 10), (0, -5), (90, 11), (1 << 62, 1 << 62)])
def test_records_outside_the_block(start: int, size: int) -> None:
    with BatchDecoder(1) as decoder:
        numbers = (np.array([value]) for value in (start, size, 0))
        ticket = decoder.submit(np.zeros(100, np.uint8), *numbers, SAMPLING, 0, 0, SAMPLING.empty_batch(1))
        with pytest.raises(RecordError, match="outside"):
            ticket.wait()


def test_leaving_ends_work_under_way(records: list[bytes]) -> None:
    many = records * 50
    with BatchDecoder(2) as decoder:
        tickets = [submit(decoder, many, SAMPLING, SAMPLING.empty_batch(len(many))) for _ in range(20)]
    with pytest.raises(RuntimeError, match="ended"):
        tickets[-1].wait()
    with pytest.raises(RuntimeError, match="ended"):
        submit(decoder, records, SAMPLING, SAMPLING.empty_batch(len(records)))


def test_leaving_wakes_those_who_wait(records: list[bytes]) -> None:
    many, ended = records * 100, threading.Event()
    decoder = BatchDecoder(1)
    tickets = [submit(decoder, many, SAMPLING, SAMPLING.empty_batch(len(many))) for _ in range(20)]

    def wait() -> None:
        with pytest.raises(RuntimeError, match="ended"):
            tickets[-1].wait()
        ended.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    decoder.close()  # needs the GIL, which a waiting thread must not hold
    waiter.join(timeout=60)
    assert ended.is_set()


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (torch.empty(3, 3, 20, 20, dtype=torch.uint8), "memory"),
        (torch.empty(3, 20, 20, 3, dtype=torch.uint8), r"\[n, 3, 20, 20\]"),
        (SAMPLING.empty_batch(3).float(), "uint8"),
        (SAMPLING.empty_batch(4), "4 elements"),
    ],
)
def test_memory_that_does_not_fit(records: list[bytes], out: torch.Tensor, message: str) -> None:
    with BatchDecoder(1) as decoder, pytest.raises(ValueError, match=message):
        submit(decoder, records[:3], SAMPLING, out)
