"""Which judgement answers which requirement about wrappers, as the suites state them."""

from __future__ import annotations

from pipeconform.spec.catalogue import in_order
from pipeconform.wrappers.judgement import WrapperJudgement

__all__ = ["WRAPPER_JUDGEMENTS", "WrapperJudgement"]

WRAPPER_JUDGEMENTS: dict[str, WrapperJudgement] = in_order(WrapperJudgement)
"""By requirement id, in the order of the standard."""
