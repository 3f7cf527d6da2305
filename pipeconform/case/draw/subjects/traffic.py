"""What ranks send to each other; the cases look plain."""

from __future__ import annotations

from pipeconform.case.draw.subject import Subject
from pipeconform.case.draw.worlds import bystanding
from pipeconform.case.focus import Focus

TRAFFIC = Subject(
    focus=Focus.TRAFFIC,
    least_stages=2,
    rows=(1, 8, 8),
    widths=(1, 64, 64),
    # mostly among bystanders: only there is the default group another one than the pipeline's
    world=lambda d: bystanding(d, (1, 1, 2, 0)),
    no_control="its cases are plain ones, of which the traffic is looked at",
)
