"""What comes out of the last stage."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.adapter import Feature
from pipeconform.case.draw.traits import traits
from pipeconform.case.focus import Focus
from pipeconform.judge.conditions import SOMEBODY_ELSE, UNEVEN_BATCH
from pipeconform.judge.evidence import Evidence, Finding, shown_step
from pipeconform.judge.forward import (
    batch_order_is_kept,
    containers_are_kept,
    merges_are_right,
    outputs_are_due,
    outputs_are_right,
)
from pipeconform.judge.judgement import of_refusals, requirement
from pipeconform.judge.outcome import Outcome
from pipeconform.judge.refusals import Refusal, refused_on_every_rank
from pipeconform.judge.training import gradients_are_right, losses_and_gradients_are_right, losses_are_right
from pipeconform.spec.catalogue import MUST, SHOULD

from ..promises import FULL_MODEL, HANDLED, TIME_OUT, contract, documented, paper


@requirement(
    "FWD-1",
    title="Outputs",
    level=MUST,
    about=(Focus.PLAIN,),
    nothing="neither an output nor a loss is returned, and a caller sees nothing else of the outputs",
    promise=paper("GPipe (arXiv:1811.06965), section 2.3: pipelining does not change what is computed"),
)
def outputs_equal_the_unpipelined_models(evidence: Evidence) -> Iterator[Finding]:
    """Each microbatch's output is the output of the unpipelined model for the same microbatch: the same bits,
    or values that the same operations can round to.

    The same kernels run on the same data, and may round otherwise only where parameters lie elsewhere in memory;
    any larger difference means that something else was computed or sent.
    """
    if outputs_are_due(evidence):
        yield from outputs_are_right(evidence)
        return
    found = list(outputs_are_right(evidence.uncounted))
    yield from found or losses_are_right(evidence)


@requirement(
    "FWD-2",
    title="Order and length of the merged output",
    level=MUST,
    about=(Focus.PLAIN, Focus.UNEVEN),
    needs=(Feature.OUTPUTS,),
    tolerates=(Focus.UNEVEN,),
    anywhere=True,  # a rank in the middle sees no batch
    condition=UNEVEN_BATCH,
    promise=(
        FULL_MODEL,
        documented(
            "torch.distributed.pipelining documentation, merge_chunks: chunks are merged into the whole value",
            "distributed.pipelining.html#torch.distributed.pipelining.microbatch.merge_chunks",
        ),
    ),
)
def merged_output_has_the_batchs_order_and_length(evidence: Evidence) -> Iterator[Finding]:
    """The merged output has the batch's length and order for every batch size B, whether or not B is a
    multiple of m. A batch size that is not supported is refused where that is noticed, before any rank that
    holds outputs returns them; rows are never wrong.

    A batch that does not divide evenly must not come back with samples lost, repeated or read from an
    uninitialised buffer.
    """
    yield from batch_order_is_kept(evidence)
    if Focus.UNEVEN in traits(evidence.case) and Feature.UNEVEN_BATCHES in evidence.capabilities.features:
        yield from outputs_are_right(evidence)
        yield from losses_and_gradients_are_right(evidence)


@of_refusals(
    "FWD-24",
    title="Batches refused alike",
    level=SHOULD,
    about=(Focus.UNEVEN,),
    condition=UNEVEN_BATCH,
    promise=(HANDLED, TIME_OUT),
)
def uneven_batches_end_alike_on_every_rank(refusal: Refusal) -> Iterator[Outcome]:
    """A batch size that is not a multiple of m ends in the same way on every rank: all raise an error of
    their own, or none does.

    A rank that refuses alone leaves the others waiting until a time-out. Ranks in the middle see no batch,
    and no engine promises to tell them, so this is no MUST.
    """
    yield from refused_on_every_rank(refusal)


@requirement(
    "FWD-3",
    title="Where outputs appear",
    level=MUST,
    about=(Focus.PLAIN,),
    needs=(Feature.OUTPUTS,),
    condition=SOMEBODY_ELSE,
    promise=paper("Zero Bubble Pipeline Parallelism (arXiv:2401.10241), V placement"),
)
def outputs_appear_where_declared(evidence: Evidence) -> Iterator[Finding]:
    """Outputs appear on the ranks that the contract declares, and nowhere else.

    The last stage is not always on the last rank: with a V placement it is on the first.
    """
    holders = evidence.result_ranks(evidence.capabilities.outputs_on)
    for expected in evidence.runs():
        for one in evidence.shown:
            has = shown_step(one, expected.step).output is not None
            should = one.pipeline_rank in holders
            evidence.compared()
            if has != should:
                text = (
                    "returned no output, but is declared to" if should else "returned an output, but must not"
                )
                yield Finding(
                    kind="output missing" if should else "output on the wrong rank",
                    message=f"rank {one.rank} (pipeline rank {one.pipeline_rank}) {text}; outputs belong on "
                    f"pipeline rank {', '.join(map(str, sorted(holders)))}",
                    step=expected.step,
                    rank=one.rank,
                )


@requirement(
    "FWD-23",
    title="Outputs with a merge of their own",
    level=MUST,
    about=(Focus.MERGES,),
    promise=(
        documented(
            "torch.distributed.pipelining documentation, merge_chunks: merged according to the specification",
            "distributed.pipelining.html#torch.distributed.pipelining.microbatch.merge_chunks",
        ),
        contract("Plan.output_rules: how an output is merged"),
    ),
)
def outputs_are_merged_by_their_own_rules(evidence: Evidence) -> Iterator[Finding]:
    """An output with a merge rule is merged by that rule: microbatches stand side by side in the dimension
    that it names, in the batch's order; a value that is the same in every microbatch appears once; the user's
    function is called with the microbatches' values in the batch's order, once each.

    Attention maps, router statistics and auxiliary losses leave a model next to its output; merged along the
    wrong dimension, they are rows of the wrong samples.
    """
    yield from merges_are_right(evidence)
    yield from gradients_are_right(evidence)


@requirement(
    "FWD-11",
    title="Structured outputs",
    level=MUST,
    about=(Focus.STRUCTURED,),
    needs=(Feature.OUTPUTS,),
    promise=documented(
        "torch.distributed.pipelining, note on the model output type", "distributed.pipelining.html"
    ),
)
def structured_outputs_keep_their_structure(evidence: Evidence) -> Iterator[Finding]:
    """The last stage may return any structure that the implementation claims (tuple, dict); the loss function
    and the merged output see that structure.

    Models return (logits, auxiliary) pairs and dictionaries; an engine must not drop or flatten them.
    """
    yield from containers_are_kept(evidence)
    yield from gradients_are_right(evidence)
