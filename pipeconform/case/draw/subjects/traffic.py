"""Traffic between ranks; the cases are otherwise plain."""

from __future__ import annotations

from pipeconform.case.draw.subject import Subject
from pipeconform.case.draw.worlds import bystanding
from pipeconform.case.focus import Focus

TRAFFIC = Subject(
    focus=Focus.TRAFFIC,
    least_stages=2,
    rows=(1, 8, 8),
    widths=(1, 64, 64),
    # usually with bystanders: only then do the default group and the pipeline's group differ
    world=lambda d: bystanding(d, (1, 1, 2, 0)),
    no_control="its cases are plain, and the traffic that they cause is the subject",
)
