"""The judgements of all requirements about wrappers, collected from the suites."""

from __future__ import annotations

from pipeconform.spec.catalogue import in_order
from pipeconform.wrappers.judgement import WrapperJudgement

__all__ = ["WRAPPER_JUDGEMENTS", "WrapperJudgement"]

WRAPPER_JUDGEMENTS: dict[str, WrapperJudgement] = in_order(WrapperJudgement)
"""The judgements by requirement id, in the order of the standard."""
