"""Ctrl-C at safe points only."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

__all__ = ["deferred_interrupts"]


class deferred_interrupts:  # noqa: N801 - used as a statement, like contextlib.suppress
    """Hold SIGINT back while bytes move: a KeyboardInterrupt between a read and the note of what was read
    would lose them, and with them the framing of everything after.
    """  # noqa: D205

    def __enter__(self) -> None:
        self._caught: tuple[int, FrameType | None] | None = None
        self._handler = None
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):  # not ignored, not the kernel's own
                self._handler = handler
                signal.signal(signal.SIGINT, self._catch)

    def _catch(self, signum: int, where: FrameType | None) -> None:
        self._caught = (signum, where)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            if self._caught is not None:
                self._handler(*self._caught)
