"""What the steps of a program run with on one rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipeconform.adapter import Capabilities, Plan
from pipeconform.case.case import Case
from pipeconform.execute.answers import CheckedPipeline
from pipeconform.execute.batch_sources import BatchSources
from pipeconform.execute.initial import Initials
from pipeconform.observe.recorder import ForwardRecorder

__all__ = ["Running"]


@dataclass(frozen=True, kw_only=True)
class Running:
    """A pipeline that was built for a case, and what watches it."""

    case: Case
    plan: Plan
    pipeline: CheckedPipeline
    capabilities: Capabilities
    """Those under the case's schedule."""
    recorder: ForwardRecorder
    initials: Initials
    sources: BatchSources
    """Where microbatches come from, if the case says that they come from a source."""
    restart: Callable[[], None]
    """Has the pipeline save its training, and puts another one in its place, which restores it."""
    returns_outputs: bool = True
    """Whether training steps are asked to return outputs."""
