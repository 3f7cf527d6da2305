"""Gradients accumulated over backward passes: no_sync, and two forwards before one backward."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case.wrapper_case import Pass, Step, WrapperCase
from pipeconform.judge.evidence import Finding
from pipeconform.spec.catalogue import MUST
from pipeconform.wrapper import WrapperClaims
from pipeconform.wrapper import WrapperFeature as F
from pipeconform.wrappers.judge import WrapperEvidence, is_right
from pipeconform.wrappers.judgement import requirement, under

from ..promises import ORDINARY, documented


def _accumulated(claims: WrapperClaims) -> Iterator[WrapperCase]:
    inside, outside = Pass(sync="no"), Pass()
    yield WrapperCase(steps=(Step(passes=(inside, outside)),))
    interleaved = (
        Step(passes=(inside, Pass(sync="nested"), outside)),
        Step(),
        Step(passes=(outside, inside, outside)),
        Step(passes=(inside, outside), zero="keep"),
        Step(zero="zeros"),
    )
    yield from under(WrapperCase(steps=interleaved), claims)
    yield WrapperCase(steps=interleaved, ranks=3)


@requirement(
    "DPW-7",
    title="Accumulation",
    level=MUST,
    cases=_accumulated,
    needs=(F.NO_SYNC,),
    promise=documented(
        "torch.nn.parallel.DistributedDataParallel.no_sync documentation",
        "generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.no_sync",
    ),
)
def accumulation(evidence: WrapperEvidence) -> Iterator[Finding]:
    """Backward passes inside no_sync add up locally and reduce nothing; the next pass outside reduces the
    sum, so that the result is that of one large batch. Contexts nest, and synchronised passes may come
    between.

    A context that leaks turns all reduction off, or leaves out one batch.
    """
    yield from is_right(evidence)


def _forward_decides(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield WrapperCase(steps=(Step(), Step(passes=(Pass(sync="forward_inside"), Pass()))))
    yield WrapperCase(steps=(Step(), Step(passes=(Pass(sync="backward_inside"),))))


@requirement(
    "DPW-8",
    title="Where the forward ran decides",
    level=MUST,
    cases=_forward_decides,
    needs=(F.NO_SYNC, F.FORWARD_DECIDES),
    promise=documented(
        "torch.nn.parallel.DistributedDataParallel.no_sync documentation, warning",
        "generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.no_sync",
    ),
)
def where_the_forward_ran_decides(evidence: WrapperEvidence) -> Iterator[Finding]:
    """Whether a backward pass synchronises depends on where its forward ran: inside no_sync it does not,
    outside it does, wherever the backward itself is called.

    This is documented, and it is the opposite of what a reader of the context expects.
    """
    yield from is_right(evidence)


def _two_forwards(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield from under(WrapperCase(steps=(Step(passes=(Pass(forwards=2),)),) * 2), claims)


@requirement(
    "DPW-21",
    title="Two forwards before one backward",
    level=MUST,
    cases=_two_forwards,
    needs=(F.TWO_FORWARDS,),
    promise=ORDINARY,
)
def two_forwards_before_one_backward(evidence: WrapperEvidence) -> Iterator[Finding]:
    """Two forward passes of the wrapper before one backward of the sum of their losses give the sum of both
    gradients, averaged once.

    What the second forward prepares replaces what the first one prepared.
    """
    yield from is_right(evidence)
