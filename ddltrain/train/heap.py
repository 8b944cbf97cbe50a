"""Memory that stays with the process from step to step.

Every step needs the same tensors again. The C library gives large blocks back to the system as soon as they are free, which then has to
find and clear thousands of pages for the next step. It costs most where gradients lie in buckets, for then all else is free between steps.
"""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # the names of mallopt(3)
_NEVER_BYTES = (1 << 31) - 1
_LARGEST_KEPT_BYTES = 1 << 30
_LARGEST_KEPT_BY_OLD_BYTES = 1 << 25  # older versions refuse more


def keep_freed_memory() -> None:
    """Have the C library keep what is freed, for later allocations; the largest go back as ever. Does nothing without glibc."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        if not set_option(_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES):
            set_option(_MMAP_THRESHOLD, _LARGEST_KEPT_BY_OLD_BYTES)
        set_option(_TRIM_THRESHOLD, _NEVER_BYTES)
