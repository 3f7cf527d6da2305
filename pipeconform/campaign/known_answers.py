"""Remembers the oracle's answers: a case is executed several times, and other schedules come to the same questions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

__all__ = ["KnownAnswers"]


class KnownAnswers:
    """The oracle's answers by question, both encoded; at most `most`, of which the least recently used goes first.

    A question names all that its answer depends on and no implementation, so implementations may share the answers.
    """

    def __init__(self, *, most: int = 512) -> None:
        self._most = most
        self._answers: OrderedDict[bytes, bytes] = OrderedDict()

    def known(self, question: bytes) -> bytes | None:
        """The answer to a question, or None if it is not known."""
        if question in self._answers:
            self._answers.move_to_end(question)
        return self._answers.get(question)

    def answer(self, question: bytes, *, ask: Callable[[], bytes]) -> bytes:
        """The answer to a question; `ask` is called if it is not known."""
        found = self.known(question)
        if found is None:
            found = self._answers[question] = ask()
            if len(self._answers) > self._most:
                self._answers.popitem(last=False)
        return found
