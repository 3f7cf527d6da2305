"""A case of either kind: for a pipeline or for a data-parallel wrapper."""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from pipeconform.case import wrapper_case
from pipeconform.case.case import Case, decode_case
from pipeconform.case.limits import bounded
from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.errors import BadCaseError
from pipeconform.reading import decoded_json

__all__ = [
    "WRAPPER_COLUMN",
    "AnyCase",
    "case_of",
    "decode_any_case",
    "schedule_of",
    "schema_with_cases",
    "world_sizes",
]

WRAPPER_COLUMN = "Wrapper"
"""Takes the place of the schedule for wrappers, which have none."""

if TYPE_CHECKING:
    AnyCase: TypeAlias = Case | WrapperCase
else:

    class AnyCase(ABC):  # noqa: B024 - msgspec knows no union of structs without tags, and asks `case_of` instead
        """A case of either kind."""

    AnyCase.register(Case)
    AnyCase.register(WrapperCase)

_ANY: Any = AnyCase
_OF_A_PIPELINE = frozenset({"model", "schedule", "world", "program", "format"})


def case_of(kind: type, data: Any) -> Any:
    """The `dec_hook` of msgspec for types that contain an `AnyCase`.

    Raises:
        ValueError: `data` is not a case, or not a possible one.
    """
    assert kind is _ANY, f"{kind} cannot be read"
    try:
        if _is_of_a_wrapper(data):
            return bounded(msgspec.convert(data, type=WrapperCase), source="case")
        return bounded(msgspec.convert(data, type=Case), source="case")
    except BadCaseError as error:
        raise ValueError(str(error)) from error


def decode_any_case(data: bytes | str, *, source: str = "case") -> AnyCase:
    """Read a case of either kind from JSON.

    Raises:
        BadCaseError: the text is not JSON, not a case, has another format or is impossible; the message names `source`.
    """
    raw = decoded_json(data, dict[str, Any], source=source, what="a case", error=BadCaseError)
    return (
        wrapper_case.decode_case(data, source=source)
        if _is_of_a_wrapper(raw)
        else decode_case(data, source=source)
    )


def schedule_of(case: AnyCase) -> str:
    """The schedule of a pipeline case; `WRAPPER_COLUMN` for a wrapper case."""
    return case.schedule if isinstance(case, Case) else WRAPPER_COLUMN


def world_sizes(case: AnyCase) -> tuple[int, ...]:
    """The sizes of the worlds in which the case runs, one after the other; verdicts are of the last world that ran."""
    return (case.world.size,) if isinstance(case, Case) else case.world_sizes


def _is_of_a_wrapper(data: Any) -> bool:
    """Whether decoded JSON is a wrapper case: it has no field of a pipeline case, and may have no field at all."""
    return isinstance(data, dict) and not data.keys() & _OF_A_PIPELINE


def schema_with_cases(kind: type) -> dict[str, Any]:
    """The JSON Schema of a type that contains an `AnyCase`."""
    either, parts = msgspec.json.schema_components((Case, WrapperCase))
    found = msgspec.json.schema(kind, schema_hook=lambda _: {"anyOf": list(either)})
    return {**found, "$defs": {**parts, **found["$defs"]}}
