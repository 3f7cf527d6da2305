"""The judgement of each requirement about pipelines, as the suites state them.

Cases are assigned to requirements so that verdicts are precise: a case about keyword arguments is judged by the
requirement about keyword arguments, and not by every other requirement that its failure would also break.
"""

from __future__ import annotations

from pipeconform.judge.judgement import Judgement
from pipeconform.spec.catalogue import in_order

__all__ = ["JUDGEMENTS", "Judgement"]

JUDGEMENTS: dict[str, Judgement] = in_order(Judgement)
"""All judgements by requirement id, in the order of the standard."""
