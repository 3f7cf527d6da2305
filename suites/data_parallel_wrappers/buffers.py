"""Buffers: broadcast before every forward, or each rank's own."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case.wrapper_case import Step, WrapperCase
from pipeconform.judge.evidence import Finding
from pipeconform.spec.catalogue import MUST
from pipeconform.wrapper import WrapOptions, WrapperClaims
from pipeconform.wrapper import WrapperFeature as F
from pipeconform.wrappers.judge import WrapperEvidence, is_right
from pipeconform.wrappers.judgement import requirement

from ..promises import documented


def _buffers(claims: WrapperClaims) -> Iterator[WrapperCase]:
    for module in ("normed", "assigned"):
        yield WrapperCase(module=module, steps=(Step(),) * 3)
        off = WrapOptions(broadcast_buffers=False)
        yield WrapperCase(module=module, steps=(Step(),) * 3, options=off)
    yield WrapperCase(module="normed", ranks=3)


@requirement(
    "DPW-15",
    title="Buffers",
    level=MUST,
    cases=_buffers,
    needs=(F.BROADCASTS_BUFFERS,),
    promise=documented(
        "torch.nn.parallel.DistributedDataParallel documentation, broadcast_buffers",
        "generated/torch.nn.parallel.DistributedDataParallel.html",
    ),
)
def buffers(evidence: WrapperEvidence) -> Iterator[Finding]:
    """Where nothing is accumulated, buffers take the values of the first rank before every forward; with this
    switched off, every rank keeps its own. Both hold for batch norm and for buffers that the module assigns
    anew.

    A list of buffers made at construction no longer holds the module's buffers.
    """
    yield from is_right(evidence)
