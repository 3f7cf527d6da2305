"""Which judgement answers which requirement about pipelines, as the suites state them.

The partition keeps accusations precise: a case about keyword arguments is judged by the requirement
about keyword arguments, and not by every requirement that its failure would break as well.
"""

from __future__ import annotations

from pipeconform.judge.judgement import Judgement
from pipeconform.spec.catalogue import in_order

__all__ = ["JUDGEMENTS", "Judgement"]

JUDGEMENTS: dict[str, Judgement] = in_order(Judgement)
"""By requirement id, in the order of the standard."""
