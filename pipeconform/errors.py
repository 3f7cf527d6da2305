"""Every error pipeconform raises, in one tree.

::

    PipeconformError
    ├── UsageError            exit code 2: the caller can fix it
    │   ├── UnknownNameError      no requirement, schedule, profile or implementation has this name
    │   ├── BadAdapterError       the adapter cannot be imported or lacks something
    │   ├── BadCaseError          a case (or its file) is damaged, impossible or of another version
    │   ├── BadTableError         a schedule table cannot be read or is malformed
    │   ├── BadResultError        a result file is damaged, unwritable or of another version
    │   ├── BadExpectationsError  an expectations file is damaged or incomplete
    │   ├── BadKnownError         a file of known causes is damaged or incomplete
    │   ├── BadPackageError       a certification package cannot be read, written, merged or signed
    │   ├── TooLargeError         claims that would take too long to draw cases from
    │   └── LevelUnavailableError a level whose requirements the standard does not have yet
    ├── HarnessError          exit code 3: the harness itself failed
    │   ├── PoolError             rank processes could not be started or reached
    │   │   ├── NoRanksError          ranks could not be started for several cells in a row
    │   │   └── TooFewAgentsError     attached ranks: fewer agents than the run's minimum, and none re-joined
    │   ├── VariantError          an environment setting did not take effect in the ranks
    │   └── NothingJudgedError    a run or a requirement that judged no example
    ├── ContractError         an adapter broke its contract while a case ran
    └── Unsupported           raised *by adapters*: this plan is outside what I claim

A violation of a requirement is a verdict, not an error: see ``pipeconform.judge``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pipeconform.suggestions import nearest

_MOST_KNOWN = 8


class PipeconformError(Exception):
    """Anything pipeconform raises on purpose; its text is meant to be shown without a traceback."""

    exit_code = 3
    case: Any = None
    """The case that was being judged; None outside of any."""


class UsageError(PipeconformError):
    """The request cannot be carried out as given; change the command, file or adapter that the message names."""

    exit_code = 2


class UnknownNameError(UsageError):
    """An unknown name; the message lists the nearest names, or says where all are listed."""

    def __init__(
        self,
        kind: str,
        name: str,
        known: Iterable[str],
        *,
        aliases: Mapping[str, str] | None = None,
        listed_by: str = "",
    ) -> None:
        """`aliases` are other spellings of known names; `listed_by` is the command that prints all of them."""
        names = sorted(known)
        near = nearest(name, names, aliases)
        if near:
            hint = f"nearest: {', '.join(near)}"
        elif listed_by and (len(names) > _MOST_KNOWN or not names):
            hint = f"'{listed_by}' prints all"
        else:
            more = ", …" if len(names) > _MOST_KNOWN else ""
            hint = f"known: {', '.join(names[:_MOST_KNOWN]) or 'none'}{more}"
        super().__init__(f"unknown {kind} {name!r}; {hint}")
        self.kind, self.name = kind, name


class BadAdapterError(UsageError):
    """The implementation cannot be used; the message says what was imported and what is missing."""


class BadCaseError(UsageError):
    """A case cannot be read or built; the message names the field and what was expected there."""


class BadTableError(UsageError):
    """A schedule table cannot be read; the message gives line, column and reason."""


class BadResultError(UsageError):
    """A result file cannot be read or written; the message names the file and field."""


class BadExpectationsError(UsageError):
    """An expectations file cannot be used; the message names file, line and what to change there."""


class BadKnownError(UsageError):
    """A file of known causes is damaged or incomplete; the message names the line and the required change."""


class BadPackageError(UsageError):
    """A certification package cannot be read, written, merged or signed; the message names file and field."""


class TooLargeError(UsageError):
    """Something is too large to process; the message names it, its size and the limit."""


class LevelUnavailableError(UsageError):
    """A level that this version of the standard cannot grant; choose one that 'list --levels' offers."""


class HarnessError(PipeconformError):
    """The harness failed, so the implementation cannot be judged. Please report it."""


class PoolError(HarnessError):
    """Rank processes could not be started or broke the protocol; see the stderr in the message."""


class NoRanksError(PoolError):
    """Ranks could not be started for several cells in a row: the machine, or its devices, cannot be used any more."""


class TooFewAgentsError(PoolError):
    """Fewer agents are attached than the run needs, and none came in time, so no further case can be judged."""


class VariantError(HarnessError):
    """The rank processes do not see the environment settings asked for, so no verdict would be valid."""


class NothingJudgedError(HarnessError):
    """A run that judged nothing never passes; widen the selection or raise the number of examples."""


class ContractError(PipeconformError):
    """The adapter returned something that its contract does not allow; fix the adapter, not the engine."""


class Unsupported(PipeconformError):  # noqa: N818 - adapters raise it as a statement, not as an error
    """Raised by an adapter's ``build`` for a plan outside its claims; say what is not supported."""
