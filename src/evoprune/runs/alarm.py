"""A time limit on what this process does."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from evoprune.errors import ConfigError


class Overdue(BaseException):
    """The time is over. No Exception, so that a task's own handlers let it pass."""


@contextlib.contextmanager
def alarm(seconds: float | None) -> Iterator[Callable[[], None]]:
    """Gives a function that has Overdue raised in the main thread so many seconds after its call."""
    if seconds is None:
        yield lambda: None
        return
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError("outside the main thread, a time limit needs the executor 'local'")

    def ring(number: int, frame: FrameType | None) -> None:
        raise Overdue

    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield lambda: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
