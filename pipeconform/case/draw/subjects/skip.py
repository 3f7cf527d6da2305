"""Skip connections: tensors that a stage makes for a stage after the next one."""

from __future__ import annotations

from pipeconform.case.case import Passage
from pipeconform.case.draw.changes import ORDINARY_TENSORS, without_passages
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.passages import passes, with_passages
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus


def _drawn(d: Drawing, source: int) -> tuple[Passage, ...]:
    end = d.pick(range(source + 2, d.num_stages))
    users = d.pick([(end,), tuple(range(source + 1, end + 1))])
    return (Passage(kind="stream", source=source, last=end, users=users),)


SKIP = Subject(
    focus=Focus.SKIP,
    claimed=passes,
    found=lambda case: any(one.kind == "stream" and one.users for one in case.model.passages),
    least_stages=3,
    contents=with_passages(_drawn, reach=2),
    without=without_passages,
    control="without the skip connection",
    further=(ORDINARY_TENSORS,),
)
