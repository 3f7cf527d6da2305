"""Parameters that some backward pass does not reach."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import structs

from pipeconform.case.wrapper_case import Pass, Step, WrapperCase
from pipeconform.judge.evidence import Finding
from pipeconform.spec.catalogue import MUST
from pipeconform.wrapper import WrapOptions, WrapperClaims
from pipeconform.wrapper import WrapperFeature as F
from pipeconform.wrappers.judge import WrapperEvidence, is_right, refused
from pipeconform.wrappers.judgement import requirement, under

from ..promises import documented


def _towers(*uses: tuple[str, ...]) -> tuple[Step, ...]:
    return tuple(Step(passes=(Pass(uses=one),)) for one in uses)


def _unused(claims: WrapperClaims) -> Iterator[WrapperCase]:
    from pipeconform.wrappers.modules import NO_PARAMETER

    found = WrapOptions(find_unused=True)
    for uses in (
        (("a", "a"), ("a", "a")),
        (("a", "b"), ("b", "b"), ("ab", "a")),
        (("ab", "ab"), ("", ""), ("a", "")),
        (("ab", NO_PARAMETER), (NO_PARAMETER, "a"), (NO_PARAMETER, NO_PARAMETER)),
    ):
        case = WrapperCase(module="towers", steps=_towers(*uses), options=found)
        yield from under(case, claims, F.BUCKETS, F.BUCKET_VIEW)
        yield structs.replace(case, steps=tuple(structs.replace(step, zero="zeros") for step in case.steps))


@requirement(
    "DPW-9",
    title="Unused parameters are found",
    level=MUST,
    cases=_unused,
    needs=(F.FIND_UNUSED,),
    promise=documented(
        "torch.nn.parallel.DistributedDataParallel documentation, find_unused_parameters",
        "generated/torch.nn.parallel.DistributedDataParallel.html",
    ),
)
def unused_parameters_are_found(evidence: WrapperEvidence) -> Iterator[Finding]:
    """Where the user asks for it, parameters may go without a gradient, different ones in every step and on
    every rank: one that some replica used gets the mean, with zeros for the others; one that none used keeps
    what it had. A backward that reaches no parameter, on some rank or on all, counts as one with zeros.

    A parameter that is stale on one rank makes replicas drift apart.
    """
    yield from is_right(evidence)


def _static(claims: WrapperClaims) -> Iterator[WrapperCase]:
    static = WrapOptions(static_graph=True)
    for uses in (("a", "a"), ("a", "b"), ("ab", "ab")):
        case = WrapperCase(module="towers", steps=_towers(uses, uses, uses), options=static)
        yield from under(case, claims, F.BUCKETS, F.BUCKET_VIEW)


@requirement(
    "DPW-10",
    title="A static graph",
    level=MUST,
    cases=_static,
    needs=(F.STATIC_GRAPH,),
    promise=documented(
        "torch.nn.parallel.DistributedDataParallel documentation, static_graph",
        "generated/torch.nn.parallel.DistributedDataParallel.html",
    ),
)
def a_static_graph(evidence: WrapperEvidence) -> Iterator[Finding]:
    """Where the graph is said to stay the same, the parameters that it does not reach, on some rank or on
    all, are treated as in DPW-9, in the first step and in all later ones.

    What the wrapper learns in the first step is applied blindly to all others.
    """
    yield from is_right(evidence)


def _unexpected(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield WrapperCase(module="towers", steps=_towers(("a", "a"), ("a", "a")))


@requirement(
    "DPW-11",
    title="An unexpected unused parameter",
    level=MUST,
    cases=_unexpected,
    needs=(F.NEEDS_ALL,),
    promise=documented(
        "torch.nn.parallel.DistributedDataParallel documentation",
        "generated/torch.nn.parallel.DistributedDataParallel.html",
    ),
)
def an_unexpected_unused_parameter(evidence: WrapperEvidence) -> Iterator[Finding]:
    """A parameter that gets no gradient although nothing allows it raises an error on every rank, at the
    latest in the next forward, which names it or gives its position; or all values are right.

    The reduction that waits for it hangs, or is never done.
    """
    if all(shown.failed is None for shown in evidence.shown):
        yield from is_right(evidence)
        return
    expected = evidence.expected()
    unused = [n for n in expected.parameters if n.startswith("towers.b")]
    by_index = [str(expected.parameters.index(name)) for name in unused]
    names = "|".join(re.escape(name) for name in unused)
    words = rf"{names}|indices.*\b({'|'.join(by_index)})\b"
    yield from refused(evidence, where="step", words=(words,))
