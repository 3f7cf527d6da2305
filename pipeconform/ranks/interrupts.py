"""Defers Ctrl-C and SIGTERM to safe points, remembers them, and lets SIGTERM raise an error."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

__all__ = ["deferred_interrupts", "remembered_interrupts", "sigterm_raises"]

_Handler = Callable[[int, FrameType | None], object]


@contextmanager
def sigterm_raises(error: BaseException) -> Iterator[None]:
    """Let SIGTERM raise `error` in the main thread, so that open things are closed and finished verdicts are kept.

    SIGTERM is not turned into SIGINT, because a shell's background jobs ignore SIGINT. In other threads than the main
    one, where Python sets no handlers, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(signum: int, where: FrameType | None) -> None:
        raise error

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class deferred_interrupts:  # noqa: N801 - used as a statement, like contextlib.suppress
    """Hold SIGINT and SIGTERM back while bytes move: an exception between reading bytes and recording them would
    lose them, and with them the framing of everything after.
    """  # noqa: D205

    def __enter__(self) -> None:
        self._caught: tuple[int, FrameType | None] | None = None
        self._handlers: dict[int, _Handler] = {}
        _replace(self._handlers, self._catch)

    def _catch(self, signum: int, where: FrameType | None) -> None:
        self._caught = (signum, where)

    def __exit__(self, *_: object) -> None:
        _restore(self._handlers)
        if self._caught is not None:
            self._handlers[self._caught[0]](*self._caught)


class remembered_interrupts:  # noqa: N801 - as above
    """Know that SIGINT or SIGTERM came even where their exception was lost: Python ignores what finalizers raise."""

    def __enter__(self) -> remembered_interrupts:
        self.asked = False
        """Whether one came."""
        self._handlers: dict[int, _Handler] = {}
        _replace(self._handlers, self._note)
        return self

    def _note(self, signum: int, where: FrameType | None) -> None:
        self.asked = True
        self._handlers[signum](signum, where)

    def __exit__(self, *_: object) -> None:
        _restore(self._handlers)


def _replace(handlers: dict[int, _Handler], instead: _Handler) -> None:
    """Let SIGINT and SIGTERM call `instead`, after their handlers are in `handlers`; nothing in other threads."""
    if threading.current_thread() is threading.main_thread():
        for signum in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(signum)
            if callable(handler):  # not ignored, not the kernel's own
                handlers[signum] = handler
                signal.signal(signum, instead)


def _restore(handlers: Mapping[int, _Handler]) -> None:
    for signum, handler in handlers.items():
        signal.signal(signum, handler)
