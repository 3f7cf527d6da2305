"""Traffic between ranks; the cases are otherwise plain, or of steps of two sizes."""

from __future__ import annotations

from pipeconform.case.case import Zero
from pipeconform.case.draw.changes import replaced
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.draw.subjects.varying import is_claimed, of_another_size
from pipeconform.case.draw.worlds import bystanding
from pipeconform.case.focus import Focus


def _program(d: Drawing, draft: Draft) -> Draft:
    """Let sizes change now and then: an engine may then send them, by other means than tensors of a known size."""
    if not (d.claim.trains and is_claimed(d.capabilities) and d.pick([False, False, True])):
        return draft
    other, _ = of_another_size(d, draft)
    return replaced(draft, program=(draft.train, Zero(set_to_none=True), other))


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
