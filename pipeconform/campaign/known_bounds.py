"""Remembers the oracle's answers with bounds: they are dear, and several requirements ask for the same."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

__all__ = ["KnownBounds"]


class KnownBounds:
    """The oracle's answers by question, both encoded; at most `most`, of which the least recently used goes first.

    A question names all that its answer depends on and no implementation, so implementations may share the answers.
    """

    def __init__(self, *, most: int = 128) -> None:
        self._most = most
        self._answers: OrderedDict[bytes, bytes] = OrderedDict()

    def answer(self, question: bytes, *, ask: Callable[[], bytes]) -> bytes:
        """The answer to a question; `ask` is called if it is not known."""
        if question not in self._answers:
            self._answers[question] = ask()
            if len(self._answers) > self._most:
                self._answers.popitem(last=False)
        self._answers.move_to_end(question)
        return self._answers[question]
