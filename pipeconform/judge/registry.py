"""Which judgement answers which requirement, about which cases: the chapters' rows in one table.

The partition keeps accusations precise: a case about keyword arguments is judged by the requirement
about keyword arguments, and not by every requirement that its failure would break as well.
"""

from __future__ import annotations

from pipeconform.judge.chapters.communication import COMMUNICATION
from pipeconform.judge.chapters.data_parallel import DATA_PARALLEL
from pipeconform.judge.chapters.errors import ERRORS
from pipeconform.judge.chapters.forward import FORWARD
from pipeconform.judge.chapters.lifecycle import LIFECYCLE
from pipeconform.judge.chapters.schedules import SCHEDULES
from pipeconform.judge.chapters.split_backward import SPLIT_BACKWARD
from pipeconform.judge.chapters.tracing import TRACING
from pipeconform.judge.chapters.training import TRAINING
from pipeconform.judge.judgement import Judgement

__all__ = ["JUDGEMENTS", "Judgement"]

JUDGEMENTS: dict[str, Judgement] = {
    **FORWARD,
    **TRAINING,
    **SPLIT_BACKWARD,
    **SCHEDULES,
    **DATA_PARALLEL,
    **TRACING,
    **ERRORS,
    **COMMUNICATION,
    **LIFECYCLE,
}
"""By requirement id."""
