"""Traffic between ranks; the cases are otherwise plain, or of steps of two sizes."""

from __future__ import annotations

from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.draw.subjects.varying import is_claimed, of_two_sizes
from pipeconform.case.draw.worlds import bystanding
from pipeconform.case.focus import Focus


def _program(d: Drawing, draft: Draft) -> Draft:
    """Let sizes change now and then: an engine may then send them, by other means than tensors of a known size."""
    return of_two_sizes(d, draft) if is_claimed(d.capabilities) and d.pick([False, False, True]) else draft


TRAFFIC = Subject(
    focus=Focus.TRAFFIC,
    least_stages=2,
    rows=(1, 8, 8),
    widths=(1, 64, 64),
    # usually with bystanders: only then do the default group and the pipeline's group differ
    world=lambda d: bystanding(d, (1, 1, 2, 0)),
    program=_program,
    no_control="the traffic of its cases, which are plain or of two sizes, is the subject",
)
