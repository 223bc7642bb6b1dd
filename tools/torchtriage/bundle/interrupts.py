"""Ending a collection early: what was taken until then is still written, and what runs is ended at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType

# A scheduler that ends a job's step, a terminal that goes away.
_ALSO = (signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))


@dataclass
class Interrupts:
    """What ended the work early, if anything did."""

    by: str | None = None
    """The signal: "SIGINT"."""
    over: bool = False

    def no_more(self) -> None:
        """From here on signals do nothing, not even a first one."""
        self.over = True


@contextlib.contextmanager
def at_most_one_interrupt() -> Generator[Interrupts, None, None]:
    """Within it the first Ctrl-C, SIGTERM or SIGHUP raises KeyboardInterrupt and further ones do nothing.

    So what was taken is still written. A signal that is ignored (``nohup``) stays so, and a handler that a program has
    for SIGTERM or SIGHUP stays in charge. Only the main thread can do so; elsewhere nothing is changed.
    """
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *_ALSO)}

    def first(number: int, frame: FrameType | None) -> None:
        if interrupts.over:
            return
        interrupts.over, interrupts.by = True, signal.Signals(number).name
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)
        else:
            raise KeyboardInterrupt

    # No SIG_IGN after the first one either: programs that are started then would inherit it.
    taken = [
        number
        for number, handler in before.items()
        if (callable(handler) if number == signal.SIGINT else handler == signal.SIG_DFL)
    ]
    for number in taken:
        signal.signal(number, first)
    try:
        yield interrupts
    finally:
        for number in taken:
            signal.signal(number, before[number])
