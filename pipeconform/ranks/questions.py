"""In the controller: asks unanswered ranks what they are doing, and checks whether that proves a deadlock."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pipeconform.errors import PipeconformError
from pipeconform.ranks.examiner import QUESTION
from pipeconform.ranks.forkserver import ForkServer, Group
from pipeconform.ranks.protocols import Asked
from pipeconform.ranks.standing import SETTLED, Standing, deadlocked
from pipeconform.reading import decoded_json, file_bytes

__all__ = ["Prover", "Question"]

_PATIENCE = (
    1.0  # seconds for all ranks to answer; a rank inside native code that holds Python's lock never does
)
_MOST_BYTES = 16 << 20
_POLL = 0.005  # seconds
_FIRST = 0.1  # seconds of idleness after which asking is worthwhile
_LAST = (
    0.5  # the same for the last first round: answering looks like progress, and would delay the idle limit
)
_LATER = 0.4  # the same where nothing was recorded yet: on a busy machine a task may idle before it records


class Question:
    """A question to some ranks at once; a rank may never answer."""

    def __init__(self, server: ForkServer, group: Group, *, paths: Mapping[int, Path]) -> None:
        self._paths = dict(paths)
        self._until = time.monotonic() + _PATIENCE
        self._answers: dict[int, Standing] = {}
        for path in self._paths.values():
            with contextlib.suppress(OSError):  # a task may delete any file
                path.unlink(missing_ok=True)
        server.signal(group, ranks=tuple(self._paths), signum=QUESTION)

    def answers(self) -> dict[int, Standing]:
        """The answers so far."""
        for rank, path in self._paths.items():
            if rank not in self._answers:
                with contextlib.suppress(OSError, PipeconformError):  # half written, or not by the examiner
                    data = file_bytes(path, error=PipeconformError, most=_MOST_BYTES)
                    self._answers[rank] = decoded_json(
                        data, Standing, source=path, what="a standing", error=PipeconformError
                    )
        return dict(self._answers)

    def wait(self) -> dict[int, Standing]:
        """The answers when no more are expected."""
        while not self.over:
            time.sleep(_POLL)
        return self.answers()

    @property
    def over(self) -> bool:
        """Whether every rank has answered, or will not."""
        return len(self.answers()) == len(self._paths) or time.monotonic() > self._until


class Prover:
    """Asks idle ranks twice whether they are deadlocked; rarely, because answering counts as progress."""

    def __init__(self, ask: Callable[[Sequence[int]], Asked]) -> None:
        self._ask = ask
        self._least_idle = _FIRST
        self._unrecorded = False
        self._ranks: tuple[int, ...] = ()
        self._first: dict[int, Standing] = {}
        self._settling = False
        """Whether the second round is asked only when nothing has moved for a while."""
        self._question: Asked | None = None

    @property
    def asking(self) -> bool:
        """Whether an answer is awaited."""
        return self._question is not None

    def check(self, waiting: Sequence[int], *, idle: float) -> dict[int, Standing] | None:
        """The standings that prove a deadlock of the unanswered ranks; None if nothing is proved yet."""
        if self._question is None:
            if idle >= (SETTLED if self._settling else self._least_idle):
                self._begin(tuple(waiting))
            return None
        if self._ranks == tuple(waiting) and not self._question.over:
            return None
        found, self._question = self._question.answers(), None
        first, self._first = self._first, {}
        self._settling = False
        if self._ranks != tuple(waiting):  # one of them answered, so they were not all deadlocked
            return None
        if not all(rank in found and found[rank].recorded and found[rank].wait for rank in waiting):
            if not any(one.recorded for one in found.values()):
                # twice: they will not be recorded later in this task either, and answering looks like progress
                self._least_idle = float("inf") if self._unrecorded else _LATER
                self._unrecorded = True
            return None
        if first:
            return found if deadlocked(first, found) else None
        self._first, self._settling = found, any(one.in_harness for one in found.values())
        if not self._settling:
            self._question = self._ask(waiting)
        return None

    def _begin(self, waiting: tuple[int, ...]) -> None:
        """Ask for a first round, or for the second if the first was of the same ranks and has settled."""
        if not self._settling or self._ranks != waiting:
            self._first, self._settling = {}, False
            self._least_idle = self._least_idle * 2 if self._least_idle < _LAST else float("inf")
        self._ranks, self._question = waiting, self._ask(waiting)
