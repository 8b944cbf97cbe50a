"""SIGTERM, SIGINT and SIGUSR1 ask a run to save and stop."""

import signal
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest:
    """Catches the signals from its creation on. A second one ends the process at once."""

    def __init__(self) -> None:
        self.requested = False
        for number in _SIGNALS:
            signal.signal(number, self._catch)

    def __call__(self) -> bool:
        """Whether a signal has come."""
        return self.requested

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        for handled in _SIGNALS:
            signal.signal(handled, signal.SIG_DFL)
