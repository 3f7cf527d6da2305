"""Operations of a stage that are called out of order."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case.focus import Focus
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.judgement import requirement
from pipeconform.judge.split_backward import mistakes_are_refused
from pipeconform.spec.catalogue import MUST

from ..promises import in_source


@requirement(
    "ERR-12",
    title="Operations out of order",
    level=MUST,
    about=(Focus.OUT_OF_ORDER,),
    trains=True,
    any_schedule=True,
    promise=in_source(
        "torch.distributed.pipelining, forward_one_chunk and backward_one_chunk",
        "distributed/pipelining/stage.py",
    ),
)
def operations_out_of_order_are_refused(evidence: Evidence) -> Iterator[Finding]:
    """Where a stage's operations can be called one by one, each of these raises an error whose text names the
    microbatch in words: the backward of a microbatch before its forward, a second forward or backward, a
    forward before its input is there, a backward before the gradient of the output is there, sending what is
    not there, ending the step before a backward, and a microbatch that the step does not have. Nothing
    changes, and the step can go on. Weight parts are the subject of SPL-4.

    People who write a schedule by hand make these mistakes; a buffer that is read before it is filled gives a
    silently wrong result, and a bare KeyError says nothing about the schedule.
    """
    yield from mistakes_are_refused(evidence)
