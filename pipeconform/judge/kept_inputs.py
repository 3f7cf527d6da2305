"""What happens to inputs that a stage keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.training import buffers_are_right

__all__ = ["kept_inputs_stay"]

_BUFFER = "kept_inputs_changed"
"""The buffer of a block that keeps its inputs; True once one of them has changed."""


def kept_inputs_stay(evidence: Evidence) -> Iterator[Finding]:
    """No input that a stage keeps changes later."""
    for one in buffers_are_right(evidence):
        if _BUFFER not in one.message or one.mismatch is None or one.mismatch.kind != "value":
            yield one
            continue
        told = f"what stage {one.stage} was given earlier, and keeps, has other values now; its copy has not"
        yield replace(one, kind="kept input changed", message=told, mismatch=None)
