"""Cases in which something is done wrong on purpose: the error that ends them is observed."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch.distributed as dist
from msgspec import structs

from pipeconform.adapter import ZeroGrad
from pipeconform.case.case import Case
from pipeconform.execute.batch_sources import BatchSources
from pipeconform.execute.initial import Initials
from pipeconform.execute.running import Running
from pipeconform.execute.steps import run_step
from pipeconform.execute.votes import on_every_rank
from pipeconform.observe.observation import RESUMED, WAITS_FOR_OTHERS, Failed, Observation, StepShown
from pipeconform.ranks import examiner
from pipeconform.ranks.rank import raised_from
from pipeconform.ranks.recording.recorder import our_own

__all__ = ["CaseEnded", "begin", "failed_by", "live_through", "resumed"]

_MARK = "__pipeconform_case__"


class CaseEnded(Exception):  # noqa: N818 - it carries what was observed and reports no fault of the harness
    """Leaves a mistaken case, so that its process groups end as after any error."""

    def __init__(self, observation: Observation) -> None:
        super().__init__()
        self.observation = observation


def failed_by(error: Exception, *, step: int | None) -> Failed:
    """The record of an error that ended a case in program step `step`, or (None) while it was built."""
    raised = raised_from(error)
    return Failed(
        type=raised.type,
        message=raised.message,
        causes=tuple((cause.type, cause.message) for cause in raised.causes),
        step=step,
        frames=raised.frames,
        bases=raised.bases,
        earlier=_was_raised_earlier(error),
    )


@functools.cache
def _cases() -> Iterator[int]:
    """Numbers for the cases of this process."""
    return itertools.count(1)


@functools.cache
def _current() -> list[int]:
    """The number of this process's case; empty before the first."""
    return []


def begin() -> None:
    """Begin a case: exceptions that were raised until now are those of earlier cases."""
    _current()[:] = [next(_cases())]


def _was_raised_earlier(error: BaseException) -> bool:
    """Whether an exception, or one that led to it, was seen in an earlier case; marks all of them as seen in this one.

    The mark is an attribute of the exception: a reference to it would keep what it refers to.
    """
    number, found = (_current() or [0])[0], False
    for one in _chain(error):
        found = found or getattr(one, _MARK, number) != number
        one.__dict__.setdefault(_MARK, number)
    return found


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [other for other in (one.__cause__, one.__context__) if other is not None]


def live_through(case: Case, execute: Callable[[Case], Observation], *, recovers: bool) -> Observation:
    """Execute a mistaken case; with `recovers`, run it without the mistake when all ranks have finished.

    Raises:
        Exception: whatever the implementation raised in the case without a mistake.
    """
    try:
        observation = execute(case)
    except CaseEnded as ended:
        observation = ended.observation
    if not recovers:
        return observation
    if dist.is_initialized():
        with our_own(), examiner.waiting_for_others(_waits(observation.failed)):
            dist.barrier()  # in the world's own group
    again = execute(case.without_mistakes)
    return structs.replace(again, failed=observation.failed, lasting=observation.lasting)


def _waits(failed: Failed | None) -> str:
    """What a rank does that waits for the others, and whether it has raised."""
    return WAITS_FOR_OTHERS if failed is None else f"raised {failed.type}, {WAITS_FOR_OTHERS}"


def resumed(shown: StepShown, running: Running, *, failed: Failed | None) -> StepShown:
    """Run the mistaken step, of which this rank has `shown`, once more without its mistake, on the same pipeline.

    Only if every rank of the pipeline failed in it, as `failed` says of this one; otherwise `shown` is returned. A hang
    in the second run says so in what its ranks are doing.

    Raises:
        Exception: whatever the implementation raises now.
    """
    ranks, recorder = running.plan.ranks, running.recorder
    mine = failed is not None or ranks.pipeline_rank is None
    if not on_every_rank(mine, device=ranks.device, words=_waits(failed)):
        return shown
    with (
        examiner.telling(lambda: RESUMED),
        examiner.telling(recorder.standing, of_frame=recorder.inside),
    ):
        recorder.take()
        running.pipeline.apply(ZeroGrad())
        right = running.case.without_mistakes
        return run_step(
            replace(running, case=right, initials=Initials(right), sources=BatchSources()), shown.step
        )
