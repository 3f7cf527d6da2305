"""The result of judging a wrapper: the one file its views are made from, beside that of pipelines.

The environment and implementation are told as in a pipeline's result file; a violation holds a wrapper case.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from pipeconform.errors import BadResultError
from pipeconform.replication.case import WrapperCase
from pipeconform.report.result import Environment, Implementation, Status
from pipeconform.writing import whole_file

__all__ = [
    "WRAPPER_RESULT_FORMAT",
    "WrapperCell",
    "WrapperResult",
    "WrapperViolation",
    "read_wrapper_result",
    "violation_id",
    "write_wrapper_result",
]

WRAPPER_RESULT_FORMAT = 1


class _Data(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Strict and immutable."""


class WrapperViolation(_Data, frozen=True, kw_only=True):
    """One distinct way in which a requirement is violated, with the first, smallest case that shows it."""

    id: str
    status: Status
    signature: str
    message: str
    case: WrapperCase
    digest: str
    confirmed: bool
    occurrences: int
    verdicts: str
    replay: str


class WrapperCell(_Data, frozen=True, kw_only=True):
    """The verdict on one requirement."""

    requirement: str
    status: Status
    reason: str = ""
    judgements: int = 0
    executions: int = 0
    seconds: float = 0.0
    violations: tuple[WrapperViolation, ...] = ()


class WrapperResult(_Data, frozen=True, kw_only=True):
    """Everything a run found."""

    format: int = WRAPPER_RESULT_FORMAT
    kind: str = "wrapper"
    product_version: str
    standard_version: str
    created: str
    environment: Environment
    implementation: Implementation
    seed: int
    selection: str = ""
    executions: int
    distinct_cases: int
    cells: tuple[WrapperCell, ...]
    rules: dict[str, str] = {}


def violation_id(requirement: str, case: WrapperCase, status: str, signature: str) -> str:
    """Short and stable, such as ``DPW-7:1f3a``."""
    short = hashlib.sha256(f"{case.digest}/{status}/{signature}".encode()).hexdigest()[:4]
    return f"{requirement}:{short}"


def write_wrapper_result(result: WrapperResult, path: Path) -> None:
    """Write the file as a whole or not at all.

    Raises:
        BadResultError: the folder cannot be written; the message names it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as part:
            part.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))
    except OSError as error:
        raise BadResultError(
            f"cannot write {path}: {error.strerror or error}; choose another --out"
        ) from error


def read_wrapper_result(path: Path) -> WrapperResult:
    """Read and validate a result file.

    Raises:
        BadResultError: it cannot be read, or is no wrapper's result.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=WrapperResult)
    except OSError as error:
        raise BadResultError(f"cannot read {path}: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise BadResultError(f"{path}: not a wrapper's result file: {error}") from error
