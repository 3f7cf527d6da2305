"""What happened to each rank: always exactly one verdict per rank.

A rank without an answer is a failure, never a pass; there is no fifth verdict.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec

from pipeconform.ranks.frames import Frame, raised_at, ranks_in_words
from pipeconform.ranks.output_tail import crashed_in, last_line
from pipeconform.ranks.waiting import Place, circle_of, waiting_of

__all__ = ["Cause", "Died", "Raised", "Returned", "Stuck", "Verdict", "VerdictVector", "one_of"]

_LINE_LIMIT = 160  # characters of free text in one line of describe()

# A rank whose peer died usually raises about its connection, often before the death can be reported:
# such an exception is an echo of the failure and not its cause.
_ECHO = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|remote process exited|socket closed",
    re.IGNORECASE,
)

# A rank that gave up waiting is not the one that it waited for.
_IN_VAIN = re.compile(r"timed? ?out|communicator was aborted|failed to (send|recv)", re.IGNORECASE)

_OF_RANK = re.compile(r"\brank (\d+)\b", re.IGNORECASE)


def one_of(kind: str, *bases: str, names: Iterable[str]) -> bool:
    """Whether an exception of type `kind` is one of the types called `names`; modules are not compared.

    Exceptions of derived types are, as ``except`` would have it.
    """
    return not {_bare(one) for one in (kind, *bases)}.isdisjoint(map(_bare, names))


def _bare(name: str) -> str:
    return name.rpartition(".")[2]


class Cause(msgspec.Struct, frozen=True):
    """One link of an exception's chain of causes."""

    type: str
    message: str


class Returned(msgspec.Struct, frozen=True, tag_field="verdict", tag=str.lower):
    """The task returned ``value``; ``after`` seconds from its start."""

    value: Any
    after: float = 0.0


class Raised(msgspec.Struct, frozen=True, tag_field="verdict", tag=str.lower):
    """The task raised; ``causes`` runs from the direct cause (or context) to the root."""

    type: str
    message: str
    traceback: str = ""
    causes: tuple[Cause, ...] = ()
    after: float = 0.0
    frames: tuple[Frame, ...] = ()
    """From the first call outside the harness to the line that raised the root cause."""
    output: str = ""
    """The rank's last output."""
    bases: tuple[str, ...] = ()
    """The names of its base classes, nearest first, without those that every exception has."""

    @property
    def is_echo(self) -> bool:
        """Whether the exception only says that a peer is gone."""
        return self._says(_ECHO)

    @property
    def waited_in_vain(self) -> bool:
        """Whether the exception says that a peer is gone, or did not answer in time."""
        return self.is_echo or self._says(_IN_VAIN)

    @property
    def root_message(self) -> str:
        """The message of the root cause."""
        return self.causes[-1].message if self.causes else self.message

    def repeats(self, other: Raised, *, of_rank: int) -> bool:
        """Whether the exception only passes on what another rank raised: it names that rank and says the same."""
        return (
            bool(other.root_message)
            and other.root_message in self.message
            and any(int(number) == of_rank for number in _OF_RANK.findall(self.message))
        )

    def _says(self, pattern: re.Pattern[str]) -> bool:
        return any(pattern.search(text) for text in (self.message, *(cause.message for cause in self.causes)))


class Died(msgspec.Struct, frozen=True, tag_field="verdict", tag=str.lower):
    """The process ended without answering, by a signal or by itself (``exit_code`` 0 included).

    ``lost`` names the host that is out of reach, and why; then it is unknown whether a rank is at fault.
    """

    signal: str | None = None
    exit_code: int | None = None
    output: str = ""
    after: float = 0.0
    lost: str = ""

    @classmethod
    def of(cls, code: int, *, output: str, after: float, lost: str = "") -> Died:
        """Make the verdict from an exit code in ``subprocess``'s convention."""
        if lost:
            return cls(output=output, after=after, lost=lost)
        if code >= 0:
            return cls(exit_code=code, output=output, after=after)
        try:
            name = signal.Signals(-code).name
        except ValueError:  # real-time signals have no name
            name = f"signal {-code}"
        return cls(signal=name, output=output, after=after)

    @property
    def how(self) -> str:
        """``SIGKILL``, ``exit code 3`` or ``lost: …``."""
        return f"lost: {self.lost}" if self.lost else self.signal or f"exit code {self.exit_code}"


class Stuck(msgspec.Struct, frozen=True, tag_field="verdict", tag=str.lower):
    """The rank did not answer and was ended after ``seconds``; ``why`` is the evidence."""

    seconds: float
    why: str
    stack: str = ""
    output: str = ""
    doing: str = ""
    """The action under way, or the last one: ``step 2, after the forward of stage 1, microbatch 3``."""
    waits: str = ""
    """The operation that it was blocked in: ``receive of float64[2, 3] from rank 1``."""
    waits_for: tuple[int, ...] = ()
    """The ranks that would have to act for that to end."""
    waited: float | None = None
    """For how many seconds it was blocked; None if unknown."""
    stage: int | None = None
    """The stage of this rank that the operation is for; None if unknown."""
    microbatch: int | None = None
    """The microbatch that is due in it by the schedule; None if unknown."""
    flights: tuple[str, ...] = ()
    """The operations that its backend had not ended, from torch's flight recorder, in words."""

    @property
    def after(self) -> float:
        """Seconds from the task's start to the verdict, as for the others."""
        return self.seconds


Verdict = Returned | Raised | Died | Stuck


class VerdictVector(msgspec.Struct, frozen=True):
    """The verdicts of all ranks of one task, in rank order."""

    verdicts: tuple[Verdict, ...]

    def __len__(self) -> int:
        return len(self.verdicts)

    def __iter__(self) -> Iterator[Verdict]:
        return iter(self.verdicts)

    def __getitem__(self, rank: int) -> Verdict:
        return self.verdicts[rank]

    @property
    def ok(self) -> bool:
        """Whether every rank returned (and there is at least one)."""
        return bool(self.verdicts) and all(isinstance(v, Returned) for v in self.verdicts)

    @property
    def values(self) -> tuple[Any, ...]:
        """The return values in rank order; raises ValueError if not all ranks returned."""
        values = tuple(v.value for v in self.verdicts if isinstance(v, Returned))
        if len(values) != len(self.verdicts):
            raise ValueError(f"not every rank returned:\n{self.explain()}")
        return values

    @property
    def first_failure(self) -> int | None:
        """The rank that failed first: the root cause as far as the evidence goes; None if all returned.

        A lost rank comes first, because failures that it causes are known sooner than the loss itself. Otherwise the
        earliest that raised or died comes before ranks that only lost their connection to it, or waited for it until a
        timeout. A rank that only passes on what another one raised gives way to that one. A stuck rank is the root only
        if no rank raised or died: one that waits in a circle, or for no rank that is stuck.
        """
        failed = [
            (_precedence(v), rank) for rank, v in enumerate(self.verdicts) if not isinstance(v, Returned)
        ]
        if not failed:
            return None
        first = min(failed)[1]
        if isinstance(raised := self.verdicts[first], Raised):
            return self._passed_on(first, raised)
        if not isinstance(raised, Stuck):
            return first
        stuck = self._stuck()
        free = (rank for rank, one in stuck.items() if not set(one.waits_for) & stuck.keys())
        return next(iter(circle_of(stuck)), next(free, first))

    def _passed_on(self, first: int, raised: Raised) -> int:
        """The rank whose exception the earliest one only repeats: it can be sent to others before it is raised."""
        origins = (
            rank
            for rank, one in enumerate(self.verdicts)
            if rank != first and isinstance(one, Raised) and raised.repeats(one, of_rank=rank)
        )
        return next(origins, first)

    @property
    def lost(self) -> str:
        """Why ranks on other hosts were lost; empty if none was."""
        return "; ".join(dict.fromkeys(v.lost for v in self.verdicts if isinstance(v, Died) and v.lost))

    @property
    def waiting(self) -> str:
        """What each stuck rank waits for, a line per rank, and why it never comes; empty if unknown."""
        return waiting_of(self.places)

    @property
    def places(self) -> tuple[Place, ...]:
        """Where every rank was, if any is stuck; otherwise empty."""
        return tuple(_place(rank, v) for rank, v in enumerate(self.verdicts)) if self._stuck() else ()

    @property
    def raised_at(self) -> str:
        """Where ranks raised, each chain of frames once for all ranks that took it; empty if unknown."""
        return raised_at(
            {rank: one.frames for rank, one in enumerate(self.verdicts) if isinstance(one, Raised)}
        )

    @property
    def printed(self) -> str:
        """The last output of ranks that did not return, equal texts once; empty if there is none."""
        ranks: dict[str, list[int]] = {}
        for rank, one in enumerate(self.verdicts):
            if not isinstance(one, Returned) and one.output.strip():
                ranks.setdefault(one.output.strip(), []).append(rank)
        return "\n".join(
            "\n".join([f"{ranks_in_words(members)} printed", *(f"  {line}" for line in output.splitlines())])
            for output, members in ranks.items()
        )

    def _stuck(self) -> dict[int, Stuck]:
        return {rank: v for rank, v in enumerate(self.verdicts) if isinstance(v, Stuck)}

    def describe(self) -> str:
        """Return one aligned line per rank, with a mark at the one that failed first.

        A rank that waits for another one is not marked: it is the one that suffers, and :attr:`waiting` says for whom.
        """
        root = self.first_failure
        if root is not None and isinstance(first := self.verdicts[root], Stuck) and first.waits_for:
            root = None
        digits = len(str(max(len(self.verdicts) - 1, 0)))
        lines = (
            f"rank {rank:>{digits}}  {_word(verdict):<8}  {_detail(verdict)}"
            + ("  <- first failure" if rank == root else "")
            for rank, verdict in enumerate(self.verdicts)
        )
        return "\n".join(line.rstrip() for line in lines)

    def explain(self) -> str:
        """Return the first failure in a line, :meth:`describe`, :attr:`waiting`, and its traceback, stack or output."""
        root = self.first_failure
        if root is None:
            return self.describe()
        verdict = self.verdicts[root]
        first = f"rank {root} {_word(verdict)}: {_detail(verdict)}"
        return "\n\n".join(filter(None, (first, self.describe(), self.waiting, _remains(verdict))))


def _remains(verdict: Verdict) -> str:
    """What a failed rank left to read: traceback, stack or output."""
    match verdict:
        case Raised(traceback=text) | Died(output=text):
            return text.strip()
        case Stuck(stack=stack, output=output):
            return stack.strip() or output.strip()
        case _:
            return ""


def _precedence(verdict: Verdict) -> tuple[int, float]:
    if isinstance(verdict, Stuck):
        return (2, verdict.after)
    if isinstance(verdict, Died) and verdict.lost:
        return (-1, verdict.after)
    return (int(isinstance(verdict, Raised) and verdict.waited_in_vain), verdict.after)


def _place(rank: int, verdict: Verdict) -> Place:
    if not isinstance(verdict, Stuck):
        return Place(rank=rank, verdict=_word(verdict), ended=_ended(verdict))
    return Place(
        rank=rank,
        verdict="stuck",
        waits=verdict.waits,
        waits_for=verdict.waits_for,
        waited=verdict.waited,
        doing=verdict.doing,
        stage=verdict.stage,
        microbatch=verdict.microbatch,
        flights=verdict.flights,
        stack=verdict.stack,
    )


def _ended(verdict: Verdict) -> str:
    """What happened to a rank that others may wait for."""
    match verdict:
        case Died():
            return f"died ({verdict.how})"
        case Raised(type=kind):
            return f"raised {kind}"
    return "has returned"


def _word(verdict: Verdict) -> Literal["returned", "raised", "died", "stuck"]:
    match verdict:
        case Returned():
            return "returned"
        case Raised():
            return "raised"
        case Died():
            return "died"
    return "stuck"


def _detail(verdict: Verdict) -> str:
    match verdict:
        case Returned():
            return ""
        case Raised(type=kind, message=message):
            return f"{kind}: {_one_line(message)}" if message else kind
        case Died(output=output):
            frame, line = _innermost(crashed_in(output)), _one_line(last_line(output))
            return verdict.how + (frame and f" in {frame}") + (line and f"; last output: {line}")
        case Stuck(why=why, stack=stack):
            parts = (
                why,
                verdict.waits and f"waits for {verdict.waits}",
                _innermost(stack) and f"in {_innermost(stack)}",
            )
            return "; ".join(part for part in parts if part)


def _one_line(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _LINE_LIMIT else flat[: _LINE_LIMIT - 1] + "…"


def _innermost(stack: str) -> str:
    """The frame of the main thread that a stuck rank is in: ``file.py:12 in function``."""
    main = stack.rpartition("Current thread")[2]
    found = re.search(r'File "(?P<file>[^"]*)", line (?P<line>\d+),? in (?P<function>.*)', main)
    return f"{found['file'].rpartition('/')[2]}:{found['line']} {found['function']}" if found else ""
