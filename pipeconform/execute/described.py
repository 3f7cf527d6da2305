"""Has an implementation describe itself in a rank process, and decodes the answer in the controller.

The answer is tagged: the adapter's methods decide whether it is a pipeline's or a data-parallel wrapper's, and
the controller needs to ask only once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pipeconform.adapter import Description
from pipeconform.execute.implementation import describe
from pipeconform.wrapper import WrapperDescription

if TYPE_CHECKING:
    from pipeconform.ranks.rank import RankContext

__all__ = ["TASK", "Described", "OfPipeline", "OfWrapper", "answer"]

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
