"""A case of whatever is judged: of a pipeline, or of a module wrapper."""

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
"""Stands for the schedule, which a wrapper has none of."""

if TYPE_CHECKING:
    AnyCase: TypeAlias = Case | WrapperCase
else:

    class AnyCase(ABC):  # noqa: B024 - msgspec knows no union of structs without tags, and asks `case_of` instead
        """Either kind."""

    AnyCase.register(Case)
    AnyCase.register(WrapperCase)

_ANY: Any = AnyCase
_OF_A_PIPELINE = frozenset({"model", "schedule", "world", "program", "format"})


def case_of(kind: type, data: Any) -> Any:
    """The `dec_hook` of msgspec for whatever holds an `AnyCase`.

    Raises:
        ValueError: `data` is no case, or an impossible one.
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
        BadCaseError: the text is not JSON, not a case, of another format or impossible; the message names `source`.
    """
    raw = decoded_json(data, dict[str, Any], source=source, what="a case", error=BadCaseError)
    return (
        wrapper_case.decode_case(data, source=source)
        if _is_of_a_wrapper(raw)
        else decode_case(data, source=source)
    )


def schedule_of(case: AnyCase) -> str:
    """The schedule of a pipeline's case; of a wrapper's, what stands for it."""
    return case.schedule if isinstance(case, Case) else WRAPPER_COLUMN


def world_sizes(case: AnyCase) -> tuple[int, ...]:
    """The sizes of the worlds that it is executed in, one after the other; what ranks say is of the last that ran."""
    return (case.world.size,) if isinstance(case, Case) else case.world_sizes


def _is_of_a_wrapper(data: Any) -> bool:
    """Whether what was read has nothing that every pipeline's case has; a wrapper's may have no field at all."""
    return isinstance(data, dict) and not data.keys() & _OF_A_PIPELINE


def schema_with_cases(kind: type) -> dict[str, Any]:
    """The JSON Schema of a type that holds an `AnyCase`."""
    either, parts = msgspec.json.schema_components((Case, WrapperCase))
    found = msgspec.json.schema(kind, schema_hook=lambda _: {"anyOf": list(either)})
    return {**found, "$defs": {**parts, **found["$defs"]}}
