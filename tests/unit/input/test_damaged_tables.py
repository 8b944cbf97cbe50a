"""Records whose tables are wrong, though all else fits: written byte by byte, as no change of a good record makes them."""

from collections.abc import Callable

import numpy as np
import pytest

from ddltrain.input import _image


def gray_record(steps: list[int], dc_symbol: int) -> bytes:
    """A gray record of one block with its own codes of one symbol each: a DC difference of zeros, and the end.

    Args:
        steps: The 64 steps of quantisation.
        dc_symbol: How many bits the DC difference is said to have.
    """
    own_codes = 2
    header = bytes([2, 8, 0, 8, 0, 1, 0x11, 1, own_codes, 0])
    dc_code = bytes([1, *[0] * 7, dc_symbol])  # the one code is a bit of 0
    ac_code = bytes([1, *[0] * 9, 0])
    num_bits = 1 + dc_symbol + 1
    scan = bytes(-(-num_bits // 8))
    return header + bytes(steps) + dc_code + ac_code + num_bits.to_bytes(2, "little") + scan


def decode(record: bytes) -> np.ndarray:
    ((samples, _, _),) = _image.decode_planes(record, 0, 0, 8, 8)
    return samples


READERS = [_image.unpack, decode]


@pytest.mark.parametrize("dc_symbol", [1, 10])
def test_a_record_written_by_hand_is_read(dc_symbol: int) -> None:
    record = gray_record([1] * 64, dc_symbol)
    difference = 1 - (1 << dc_symbol)  # as JPEG reads bits that begin with 0
    wanted = max(0, round(128 + difference / 8))
    assert np.array_equal(decode(record), np.full((8, 8), wanted))
    assert np.array_equal(decode(_image.pack_jpeg(_image.unpack(record))), decode(record))


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("place", [0, 1, 63])
def test_a_step_of_zero_is_refused(read: Callable[[bytes], object], place: int) -> None:
    steps = [1] * 64
    steps[place] = 0
    with pytest.raises(_image.CorruptRecord, match="quantisation table"):
        read(gray_record(steps, 1))


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("dc_symbol", [12, 16, 64, 255])
def test_a_dc_difference_of_too_many_bits_is_refused(read: Callable[[bytes], object], dc_symbol: int) -> None:
    with pytest.raises(_image.CorruptRecord):
        read(gray_record([1] * 64, dc_symbol))
