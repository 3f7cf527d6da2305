"""Buckets of any size, and gradients that are views of them."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case.wrapper_case import Step, WrapperCase
from pipeconform.judge.evidence import Finding
from pipeconform.spec.catalogue import MUST
from pipeconform.wrapper import WrapOptions, WrapperClaims
from pipeconform.wrapper import WrapperFeature as F
from pipeconform.wrappers.judge import WrapperEvidence, is_right
from pipeconform.wrappers.judgement import TINY, requirement, under

from ..promises import documented


def _buckets(claims: WrapperClaims) -> Iterator[WrapperCase]:
    for size in (TINY, 1e-4, 100.0):
        options = WrapOptions(bucket_mib=size)
        yield from under(WrapperCase(steps=(Step(),) * 4, options=options), claims, F.BUCKET_VIEW)
    yield WrapperCase(ranks=3, module="dtypes", steps=(Step(),) * 3, options=WrapOptions(bucket_mib=TINY))


@requirement(
    "DPW-12",
    title="Any size of buckets",
    level=MUST,
    cases=_buckets,
    needs=(F.BUCKETS,),
    promise=documented(
        "torch.nn.parallel.DistributedDataParallel documentation, bucket_cap_mb",
        "generated/torch.nn.parallel.DistributedDataParallel.html",
    ),
)
def any_size_of_buckets(evidence: WrapperEvidence) -> Iterator[Finding]:
    """The bucket size, from less than one parameter to more than all, changes nothing, in the first step, in
    the second (when buckets may be rebuilt) and later.

    The last bucket and the rebuilt ones are easily forgotten.
    """
    yield from is_right(evidence)


def _views(claims: WrapperClaims) -> Iterator[WrapperCase]:
    for zeros in ("none", "zeros", "keep"):
        steps = tuple(Step(zero=zeros) for _ in range(3))
        case = WrapperCase(steps=steps, options=WrapOptions(bucket_view=True))
        yield from under(case, claims, F.BUCKETS, F.FIND_UNUSED)


@requirement(
    "DPW-13",
    title="Gradients as views",
    level=MUST,
    cases=_views,
    needs=(F.BUCKET_VIEW,),
    promise=documented(
        "torch.nn.parallel.DistributedDataParallel documentation, gradient_as_bucket_view",
        "generated/torch.nn.parallel.DistributedDataParallel.html",
    ),
)
def gradients_as_views(evidence: WrapperEvidence) -> Iterator[Finding]:
    """Gradients that are views of the buckets are right however gradients are cleared: set to None, to zero,
    or kept to add up.

    A gradient that was added up in place is in its bucket already; copied there once more, it counts twice.
    """
    yield from is_right(evidence)
