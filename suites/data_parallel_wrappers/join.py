"""Ranks with different numbers of batches."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case.wrapper_case import Pass, Step, Uneven, WrapperCase
from pipeconform.judge.evidence import Finding
from pipeconform.spec.catalogue import MUST
from pipeconform.wrapper import WrapperClaims
from pipeconform.wrapper import WrapperFeature as F
from pipeconform.wrappers.judge import WrapperEvidence, is_right, refused
from pipeconform.wrappers.judgement import requirement, under

from ..promises import documented


def _join(claims: WrapperClaims) -> Iterator[WrapperCase]:
    for counts in ((2, 1), (1, 3), (0, 2), (2, 2)):
        for initial in (True, False):
            case = WrapperCase(
                steps=(Step(),) * max(counts),
                uneven=Uneven(steps=counts, divide_by_initial=initial),
            )
            yield from under(case, claims, F.BUCKETS)
    accumulated = (Step(passes=(Pass(sync="no"), Pass())),) * 2
    yield WrapperCase(ranks=3, steps=accumulated, uneven=Uneven(steps=(2, 0, 1), divide_by_initial=False))


@requirement(
    "DPW-19",
    title="Uneven inputs",
    level=MUST,
    cases=_join,
    needs=(F.JOIN,),
    promise=documented(
        "torch.nn.parallel.DistributedDataParallel.join documentation",
        "generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.join",
    ),
)
def uneven_inputs(evidence: WrapperEvidence) -> Iterator[Finding]:
    """Ranks may have different numbers of batches: gradients are divided by the number of all ranks or of
    those that have a batch, as asked for, and in the end every rank has the same parameters.

    Without special care, the ranks with more batches wait forever.
    """
    yield from is_right(evidence)


def _early(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield WrapperCase(steps=(Step(),) * 2, uneven=Uneven(steps=(2, 1), raise_early=True))
    yield WrapperCase(steps=(Step(),) * 3, ranks=3, uneven=Uneven(steps=(1, 3, 3), raise_early=True))


@requirement(
    "DPW-20",
    title="Uneven inputs as an error",
    level=MUST,
    cases=_early,
    needs=(F.JOIN,),
    promise=documented(
        "torch.nn.parallel.DistributedDataParallel.join documentation, throw_on_early_termination",
        "generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.join",
    ),
)
def uneven_inputs_as_an_error(evidence: WrapperEvidence) -> Iterator[Finding]:
    """Where uneven inputs are to be an error, every rank raises one when the first rank has no batch left,
    and says so.

    An error on one rank alone makes the others hang.
    """
    yield from refused(evidence, where="step|end of join", words=(r"uneven|exhaust|no batches|early|joined",))
