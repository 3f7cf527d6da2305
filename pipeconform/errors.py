"""Every error pipeconform raises, in one tree.

::

    PipeconformError
    ├── UsageError            exit code 2: the caller can mend it
    │   ├── UnknownNameError      a requirement, schedule, profile or implementation nobody knows
    │   ├── BadAdapterError       the adapter cannot be imported or lacks something
    │   ├── BadCaseError          a case (or its file) is damaged, impossible or of another version
    │   ├── BadTableError         a schedule table cannot be read or is malformed
    │   ├── BadResultError        a result file is damaged, unwritable or of another version
    │   ├── BadExpectationsError  an expectations file is damaged or incomplete
    │   ├── BadPackageError       a certification package cannot be read, written, merged or signed
    │   ├── TooLargeError         claims that would take too long to draw cases from
    │   └── LevelUnavailableError a level whose requirements the standard does not have yet
    ├── HarnessError          exit code 3: the harness itself failed
    │   ├── PoolError             rank processes could not be started or spoken to
    │   │   └── TooFewAgentsError     attached ranks: fewer agents than the run's minimum, and none re-joined
    │   ├── VariantError          an environment setting did not take effect in the ranks
    │   └── NothingJudgedError    a run or a requirement that judged no example
    ├── ContractError         an adapter broke its contract while a case ran
    └── Unsupported           raised *by adapters*: this plan is outside what I claim

A violation of a requirement is a verdict, not an error: see ``pipeconform.judge``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PipeconformError(Exception):
    """Anything pipeconform raises on purpose; its text is meant to be shown without a traceback."""

    exit_code = 3


class UsageError(PipeconformError):
    """What was asked for cannot be done as asked; change the command, file or adapter it names."""

    exit_code = 2


class UnknownNameError(UsageError):
    """A name nobody knows; the message lists the nearest names and how to list them all."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        folded = {one.casefold(): one for one in known}
        close = difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.4)
        near = [folded[one] for one in close] or sorted(folded.values())[:8]
        super().__init__(f"unknown {kind} {name!r}; nearest: {', '.join(near) or 'none'}")
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


class BadPackageError(UsageError):
    """A certification package cannot be read, written, merged or signed; the message names file and field."""


class TooLargeError(UsageError):
    """Something is larger than the work on it may be; the message names it, its size and the limit."""


class LevelUnavailableError(UsageError):
    """A level that this version of the standard cannot grant; choose one that 'list --levels' offers."""


class HarnessError(PipeconformError):
    """The harness failed; no verdict about the implementation can be drawn. Please report it."""


class PoolError(HarnessError):
    """Rank processes could not be started or did not speak our protocol; see the stderr it quotes."""


class TooFewAgentsError(PoolError):
    """Fewer agents are attached than the run needs, and none came in time; no later case can be judged either."""


class VariantError(HarnessError):
    """An environment setting asked for is not what the rank processes see; the verdict would lie."""


class NothingJudgedError(HarnessError):
    """A run that judged nothing is never green; widen the selection or raise the number of examples."""


class ContractError(PipeconformError):
    """The adapter returned something its contract does not allow; mend the adapter, not the engine."""


class Unsupported(PipeconformError):  # noqa: N818 - adapters raise it as a statement, not as an error
    """Raised by an adapter's ``build`` for a plan outside its claims; say what is not supported."""
