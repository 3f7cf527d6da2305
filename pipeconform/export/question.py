"""The data of an exported program: the case, the requirements that judge it, and what it showed."""

from __future__ import annotations

from typing import Any

import msgspec

from pipeconform.campaign.again import Sought
from pipeconform.case.any_case import AnyCase, case_of

__all__ = ["MEMBER", "Question", "read_question", "written_question"]

MEMBER = "question.json"
"""The name of its file in the archive."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A stored case with everything that decides how it is executed and judged."""

    engine: str
    """Name and version of the implementation when the program was written."""
    case: AnyCase
    requirements: tuple[str, ...]
    sought: Sought | None = None
    """The violation that the case showed; None if not known."""
    variant: str = "default"
    settings: dict[str, str] = {}
    """Environment variables that the variant sets."""
    device: str = "cpu"
    backend: str = "auto"
    ranks_per_device: int = 1


def written_question(question: Question) -> bytes:
    """As JSON."""
    return msgspec.json.format(msgspec.json.encode(question), indent=1)


def read_question(data: bytes) -> Question:
    """Read what `written_question` wrote.

    Raises:
        msgspec.DecodeError: the text is not such JSON.
    """

    def hook(kind: type, value: Any) -> Any:
        return case_of(kind, value)

    return msgspec.json.decode(data, type=Question, dec_hook=hook)
