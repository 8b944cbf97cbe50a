"""What a process owes to the one that started it."""

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1


def signal_when_parent_dies(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent ends, however it ends. Does nothing off Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
