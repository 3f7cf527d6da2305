"""Models that recompute activations or return structured outputs and remote references."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case.wrapper_case import Step, WrapperCase
from pipeconform.judge.evidence import Finding
from pipeconform.spec.catalogue import MUST
from pipeconform.wrapper import WrapOptions, WrapperClaims
from pipeconform.wrapper import WrapperFeature as F
from pipeconform.wrappers.judge import WrapperEvidence, is_right
from pipeconform.wrappers.judgement import requirement, under

from ..promises import ORDINARY, documented, in_source


def _checkpointed(claims: WrapperClaims) -> Iterator[WrapperCase]:
    yield from under(WrapperCase(module="checkpoint", steps=(Step(),) * 3), claims)
    for feature, options in (
        (F.FIND_UNUSED, WrapOptions(find_unused=True)),
        (F.STATIC_GRAPH, WrapOptions(static_graph=True)),
    ):
        if feature in claims.features:
            yield WrapperCase(module="checkpoint_unused", steps=(Step(),) * 3, options=options)


@requirement(
    "DPW-22",
    title="Activation checkpointing",
    level=MUST,
    cases=_checkpointed,
    needs=(F.CHECKPOINT,),
    promise=(
        documented("torch.utils.checkpoint documentation", "checkpoint.html"),
        documented(
            "torch.nn.parallel.DistributedDataParallel documentation, note on checkpointing",
            "generated/torch.nn.parallel.DistributedDataParallel.html",
        ),
    ),
)
def activation_checkpointing(evidence: WrapperEvidence) -> Iterator[Finding]:
    """Parts whose activations are recomputed in the backward pass get the same gradients, under every claimed
    option.

    The recomputation runs the forward once more, past the wrapper.
    """
    yield from is_right(evidence)


def _reentrant(claims: WrapperClaims) -> Iterator[WrapperCase]:
    # not with the search for unused parameters: what such parts use does not show in the graph, as is documented
    case = WrapperCase(module="reentrant", steps=(Step(),) * 3)
    yield from under(case, claims, F.STATIC_GRAPH, F.BUCKETS, F.BUCKET_VIEW)
    if F.STATIC_GRAPH in claims.features:
        options = WrapOptions(static_graph=True)
        yield WrapperCase(module="reentrant_unused", steps=(Step(),) * 3, options=options)


@requirement(
    "DPW-23",
    title="Reentrant checkpointing",
    level=MUST,
    cases=_reentrant,
    needs=(F.REENTRANT,),
    promise=(
        documented("torch.utils.checkpoint documentation, use_reentrant", "checkpoint.html"),
        documented(
            "torch.nn.parallel.DistributedDataParallel documentation, note on checkpointing",
            "generated/torch.nn.parallel.DistributedDataParallel.html",
        ),
    ),
)
def reentrant_checkpointing(evidence: WrapperEvidence) -> Iterator[Finding]:
    """Parts that run a backward of their own inside the backward pass, each parameter used once, get the same
    gradients, under every claimed option except the search for unused parameters.

    The backward that ends first is not the whole one, and such parts do not show in the outer graph.
    """
    yield from is_right(evidence)


def _structured(claims: WrapperClaims) -> Iterator[WrapperCase]:
    for form in ("tuple", "dict", "dataclass", "nested"):
        yield from under(WrapperCase(form=form), claims, F.FIND_UNUSED, F.STATIC_GRAPH)


@requirement(
    "DPW-24",
    title="Structured outputs",
    level=MUST,
    cases=_structured,
    needs=(F.STRUCTURED,),
    promise=(
        ORDINARY,
        documented(
            "torch.nn.parallel.DistributedDataParallel documentation, find_unused_parameters: all returned tensors",
            "generated/torch.nn.parallel.DistributedDataParallel.html",
        ),
    ),
)
def structured_outputs(evidence: WrapperEvidence) -> Iterator[Finding]:
    """Outputs in tuples, dicts, dataclasses or nestings of these come back in the same containers with the
    same values, and gradients are reduced.

    The wrapper takes a tensor that it does not find in an output for unused.
    """
    yield from is_right(evidence)


def _references(claims: WrapperClaims) -> Iterator[WrapperCase]:
    case = WrapperCase(form="reference", steps=(Step(),) * 3)
    yield from under(case, claims, F.FIND_UNUSED, F.STATIC_GRAPH, F.BUCKETS)


@requirement(
    "DPW-44",
    title="Outputs that are remote references",
    level=MUST,
    cases=_references,
    needs=(F.REFERENCES,),
    promise=in_source(
        "torch.nn.parallel.DistributedDataParallel, which unpacks a torch.distributed.rpc.RRef that is returned",
        "nn/parallel/distributed.py",
    ),
)
def outputs_that_are_remote_references(evidence: WrapperEvidence) -> Iterator[Finding]:
    """A forward may return a remote reference to an output that its own rank holds: the caller gets a
    reference, and gradients are averaged as with the output itself.

    If the wrapper does not look into an output, no reduction begins, and every rank goes on with its own
    gradients.
    """
    yield from is_right(evidence)
