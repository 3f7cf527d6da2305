"""Operations of a stage that are called out of order."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case.focus import Focus
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.judgement import requirement
from pipeconform.judge.split_backward import mistakes_are_refused, refusals_name_the_microbatch
from pipeconform.spec.catalogue import MUST, SHOULD

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
    """Where a stage's operations can be called one by one, each of these raises an error: the backward of a
    microbatch before its forward, a second forward or backward, a forward before its input is there, a
    backward before the gradient of the output is there, sending what is not there, ending the step before a
    backward, and a microbatch that the step does not have. Nothing changes, and the step can go on. Weight
    parts are the subject of SPL-4, words that of ERR-17.

    People who write a schedule by hand make these mistakes; a buffer that is read before it is filled gives a
    silently wrong result.
    """
    yield from mistakes_are_refused(evidence)


@requirement(
    "ERR-17",
    title="Words about operations out of order",
    level=SHOULD,
    about=(Focus.OUT_OF_ORDER,),
    trains=True,
    any_schedule=True,
    nothing="no operation out of order was refused",
    promise=in_source(
        "torch.distributed.pipelining, backward_weight_one_chunk: the error names the chunk in words",
        "distributed/pipelining/stage.py",
    ),
)
def operations_out_of_order_are_refused_in_words(evidence: Evidence) -> Iterator[Finding]:
    """The error about an operation out of order (ERR-12) names the microbatch in words.

    A bare KeyError says nothing about the schedule.
    """
    yield from refusals_name_the_microbatch(evidence)
