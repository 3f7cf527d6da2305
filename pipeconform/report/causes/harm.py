"""How much harm a violation does; causes are listed in this order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType

from pipeconform.case.case import Case
from pipeconform.report.result import Violation

__all__ = ["KINDS", "SIGNATURES", "WORDS", "Harm", "harm_of"]


class Harm(IntEnum):
    """The classes of harm, the worst first."""

    SILENT = 0
    STOPS = 1
    ONE_RANK = 2
    REFUSED = 3
    LEAK = 4
    DECLARED = 5


WORDS: Mapping[Harm, str] = MappingProxyType(
    {
        Harm.SILENT: "silently wrong",
        Harm.STOPS: "hangs and crashes",
        Harm.ONE_RANK: "errors on one rank only",
        Harm.REFUSED: "errors on every rank",
        Harm.LEAK: "leaks and costs",
        Harm.DECLARED: "what is declared or said",
    }
)
"""What each class is called in reports."""

KINDS: Mapping[Harm, tuple[str, ...]] = MappingProxyType(
    {
        Harm.ONE_RANK: ("FWD-24",),
        Harm.LEAK: (
            "SPL-5", "SCH-3", "SCH-4", "COM-4", "COM-5", "LIF-2", "LIF-3", "LIF-7", "LIF-8"
        ),
        Harm.DECLARED: (
            "SPL-4", "SPL-6", "SCH-2", "SCH-5", "SCH-8", "ERR-1", "ERR-2", "ERR-3", "ERR-4", "ERR-5", "ERR-6",
            "ERR-7", "ERR-8", "ERR-9", "ERR-10", "ERR-12", "ERR-16", "ERR-17", "ERR-19", "TRC-2", "TRC-4", "TRC-6",
            "DPW-18", "DPW-37", "DPW-38", "DPW-42",
        ),
    }
)  # fmt: skip
"""Requirements whose wrong answers do less harm than wrong numbers: refusals, memory and time, words and tables."""

SIGNATURES: tuple[tuple[str, Harm], ...] = (
    (r"silent wrong result|accepted$|\bvalue$|^kept input changed$|not restored$", Harm.SILENT),
    (r"^after an error: (hang|died)", Harm.STOPS),
    (r"not refused everywhere|only an echo", Harm.ONE_RANK),
    (r"^after an error: raised|^raised |refused", Harm.REFUSED),
    (r"\bkept\b|graph kept|beyond the bound|left (over|by)|in flight|more bytes than needed", Harm.LEAK),
    (r"not named|unclear|declared|sides exchanged|cause lost|tells something else", Harm.DECLARED),
)
"""Signatures (regular expressions) that say more than the requirement; the first that matches decides."""

_RANK = re.compile(r"^rank +(\d+)  (\w+) *(.*)$", re.MULTILINE)
_ECHO = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|socket closed", re.IGNORECASE
)


def harm_of(violation: Violation, requirement: str) -> Harm:
    """The class of harm of a violation of this requirement."""
    if violation.status in ("hung", "crashed"):
        return Harm.STOPS
    if violation.status == "error":
        return Harm.REFUSED if _raised_everywhere(violation) else Harm.ONE_RANK
    for pattern, harm in SIGNATURES:
        if re.search(pattern, violation.signature):
            return harm
    return next((harm for harm, names in KINDS.items() if requirement in names), Harm.SILENT)


def _raised_everywhere(violation: Violation) -> bool:
    """Whether every rank raised an error of its own, or all returned what was refused.

    A rank that is stuck, returned, or says only that its connection is closed does not say what is wrong. One outside
    of the pipeline had nothing to raise.
    """
    case, outside = violation.case, set[int]()
    if isinstance(case, Case):
        outside = set(range(case.world.size)).difference(*case.world.pipelines)
    ends = [
        (word, detail) for rank, word, detail in _RANK.findall(violation.verdicts) if int(rank) not in outside
    ]
    raised = [word == "raised" and not _ECHO.search(detail) for word, detail in ends]
    return all(raised) or all(word == "returned" for word, _ in ends)
