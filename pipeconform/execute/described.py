"""Has an implementation describe itself in a rank process, and decodes the answer in the controller.

The answer is tagged: the adapter's methods decide whether it is a pipeline's or a data-parallel wrapper's, and
the controller needs to ask only once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from pipeconform.adapter import Description
from pipeconform.errors import ContractError
from pipeconform.execute.implementation import describe
from pipeconform.wrapper import WrapperDescription

if TYPE_CHECKING:
    from pipeconform.ranks.rank import RankContext

__all__ = ["TASK", "Described", "OfPipeline", "OfWrapper", "answer", "encoded", "told_alike"]

TASK = "pipeconform.execute.described:answer"


class OfPipeline(msgspec.Struct, frozen=True, tag="pipeline"):
    """The description of a pipeline implementation."""

    description: Description


class OfWrapper(msgspec.Struct, frozen=True, tag="wrapper"):
    """The description of a data-parallel wrapper."""

    description: WrapperDescription


class Described(msgspec.Struct, frozen=True):
    """The answer of a rank process."""

    kind: OfPipeline | OfWrapper


def answer(_context: RankContext, reference: bytes) -> bytes:
    """A task for a rank process: the description of the implementation called `reference`, as MessagePack."""
    found = describe(reference.decode())
    return msgspec.msgpack.encode(
        Described(OfPipeline(found) if isinstance(found, Description) else OfWrapper(found))
    )


_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
_DECODER = msgspec.msgpack.Decoder(Description)  # made once, in the fork server


def encoded(description: Description) -> bytes:
    """A description as MessagePack, in which equal descriptions are equal bytes."""
    return _ENCODER.encode(description)


def told_alike(told: bytes, here: Description) -> Description:
    """The description that the controller was `told`, in a rank in which the implementation says `here`.

    The rank goes by the controller's: which stages it owns, and so what it is given true values of, must be what
    cases are drawn and judged by. Versions may differ: hosts may have builds of one release for different devices.

    Raises:
        ContractError: ``describe()`` says something else in this rank; the message names what.
    """
    description = _DECODER.decode(told)
    here = replace(here, version=description.version)
    if encoded(here) == told:
        return description
    path, before, now = next(_differences("describe()", description, here))
    raise ContractError(
        f"{path} is {now!r:.120} in this rank, and was {before!r:.120} before any rank ran; expected the same "
        f"description in every process: it must not depend on ranks, environment variables or the time"
    )


def _differences(path: str, before: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """Where two descriptions differ, as deep as both have the same fields."""
    if type(before) is type(now) and is_dataclass(before):
        for one in fields(before):
            yield from _differences(f"{path}.{one.name}", getattr(before, one.name), getattr(now, one.name))
    elif isinstance(before, tuple) and isinstance(now, tuple) and len(before) == len(now):
        for index, both in enumerate(zip(before, now, strict=True)):
            yield from _differences(f"{path}[{index}]", *both)
    elif _ENCODER.encode(before) != _ENCODER.encode(now):
        yield path, before, now
