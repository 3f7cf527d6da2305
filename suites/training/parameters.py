"""Frozen, unused and tied parameters, buffers, dropout, and optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.adapter import Feature
from pipeconform.case.focus import Focus
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.forward import outputs_are_right
from pipeconform.judge.judgement import requirement
from pipeconform.judge.masters import masters_are_kept
from pipeconform.judge.scales import scales_are_right
from pipeconform.judge.sums import sums_are_exact
from pipeconform.judge.training import (
    buffers_are_right,
    gradients_are_right,
    losses_and_gradients_are_right,
    updates_are_right,
)
from pipeconform.observe.array import Array
from pipeconform.spec.catalogue import MUST, Promise

from ..promises import FULL_MODEL, contract, documented, paper


@requirement(
    "TRN-5",
    title="Frozen parameters",
    level=MUST,
    about=(Focus.FROZEN,),
    trains=True,
    promise=(
        FULL_MODEL,
        documented(
            "Autograd mechanics, setting requires_grad: a frozen parameter has no gradient",
            "notes/autograd.html#setting-requires-grad",
        ),
    ),
)
def frozen_parameters(evidence: Evidence) -> Iterator[Finding]:
    """With frozen parameters and frozen stages (first, middle, last), the gradients of trainable parameters
    are right and those of frozen ones stay None.

    Fine-tuning freezes the first stages; their outputs need no gradient, and an engine that waits for one
    hangs.
    """
    yield from gradients_are_right(evidence)


@requirement(
    "TRN-28",
    title="Freezing between steps",
    level=MUST,
    about=(Focus.FREEZING,),
    trains=True,
    promise=(
        FULL_MODEL,
        documented(
            "Autograd mechanics, setting requires_grad: only leaves that need a gradient by then get one",
            "notes/autograd.html#setting-requires-grad",
        ),
    ),
)
def freezing_between_steps(evidence: Evidence) -> Iterator[Finding]:
    """After the caller has frozen or unfrozen stages between two steps, the next step gives the gradients of all
    parameters that need one then, and leaves those of the others None.

    Fine-tuning unfreezes one stage after the other; an engine that keeps what needed a gradient in the first step
    sends no gradient to a stage that begins to need one, or waits for one that is no longer sent.
    """
    yield from gradients_are_right(evidence)


@requirement(
    "TRN-29",
    title="Parameters in the loss function",
    level=MUST,
    about=(Focus.READOUT,),
    trains=True,
    promise=(
        FULL_MODEL,
        contract("Plan.loss: the loss function may use parameters of the last stage"),
        documented(
            "Autograd mechanics: the backward pass computes the gradients of all leaves that the loss depends on",
            "notes/autograd.html#how-autograd-encodes-the-history",
        ),
    ),
)
def parameters_in_the_loss_function(evidence: Evidence) -> Iterator[Finding]:
    """Where the loss function uses a parameter of the last stage that the stage itself does not use, losses are
    right, and so are the gradients of that parameter and of all others.

    A fused output layer and cross-entropy saves the memory of the logits that way; an engine that goes backward
    from what the last stage returned, or frees it before the parameter's gradient is computed, forgets the layer.
    """
    yield from losses_and_gradients_are_right(evidence)


@requirement(
    "TRN-6",
    title="Unused parameters",
    level=MUST,
    about=(Focus.UNUSED, Focus.BYPASSED),
    trains=True,
    promise=(
        FULL_MODEL,
        documented(
            "torch.autograd: the gradient of what was not used is None", "generated/torch.autograd.grad.html"
        ),
    ),
)
def unused_parameters(evidence: Evidence) -> Iterator[Finding]:
    """A parameter that is unused in some or all microbatches ends with what the reference has, None or a
    gradient; also where microbatches pass by a whole first stage, whose output then needs no gradient.

    Mixtures of experts and conditional branches use different parameters in each microbatch, and texts pass by an
    encoder of images. What the first microbatch needs is not what all of them need.
    """
    yield from gradients_are_right(evidence)


@requirement(
    "TRN-9",
    title="Buffers",
    level=MUST,
    about=(Focus.BUFFERS,),
    needs=(Feature.STATE,),
    promise=documented("torch.nn.BatchNorm1d documentation", "generated/torch.nn.BatchNorm1d.html"),
)
def buffers(evidence: Evidence) -> Iterator[Finding]:
    """Running statistics and counts equal those of the reference run microbatch by microbatch; set-up and
    probing runs leave no trace in buffers.

    A shape-probing forward on uninitialised memory poisons batch norm's statistics in the first step.
    """
    yield from buffers_are_right(evidence)


@requirement(
    "TRN-10",
    title="Dropout",
    level=MUST,
    about=(Focus.DROPOUT,),
    trains=True,
    promise=documented(
        "torch.nn.Dropout documentation: elements are chosen anew, independently, on every forward call",
        "generated/torch.nn.Dropout.html",
    ),
)
def dropout(evidence: Evidence) -> Iterator[Finding]:
    """With dropout, outputs and gradients are those of the masks that were drawn, and masks differ between
    microbatches.

    A mask drawn again for the backward pass, or once for all microbatches, does not show in the loss.
    """
    from pipeconform.oracle.masks import masks_of

    yield from losses_and_gradients_are_right(evidence)
    by_stage: dict[tuple[int, int], list[tuple[Array, ...]]] = {}
    for (step, s, _), masks in masks_of(evidence.case, evidence.shown):
        by_stage.setdefault((step, s), []).append(masks)
    for (step, s), drawn in by_stage.items():
        evidence.compared()
        # 32 or more independent bits coincide by chance less often than once in 10⁹
        if len(drawn) > 1 and drawn[0][0].size >= 32 and len(set(drawn)) == 1:
            text = f"all {len(drawn)} microbatches used the same dropout mask in stage {s}"
            yield Finding(kind="one dropout mask", message=text, step=step, stage=s)


@requirement(
    "TRN-14",
    title="Optimizer steps",
    level=MUST,
    about=(Focus.OPTIMIZER,),
    trains=True,
    needs=(Feature.STATE,),
    promise=(
        FULL_MODEL,
        documented("torch.optim.SGD and torch.optim.Adam documentation", "optim.html"),
    ),
)
def optimizer_steps(evidence: Evidence) -> Iterator[Finding]:
    """With a learning rate of zero parameters stay bitwise unchanged; SGD and Adam track the reference for 20
    steps.

    An optimizer that misses a stage's parameters, or steps twice, shows only over several steps.
    """
    yield from updates_are_right(evidence)


@requirement(
    "TRN-21",
    title="Clipped updates",
    level=MUST,
    about=(Focus.CLIPPED,),
    trains=True,
    needs=(Feature.STATE,),
    promise=(
        contract("Plan.clipping: gradients are clipped by the norm of all of them together"),
        documented(
            "torch.nn.utils.clip_grad_norm_ documentation: the norm is computed over all gradients together",
            "generated/torch.nn.utils.clip_grad_norm_.html",
        ),
    ),
)
def clipped_updates(evidence: Evidence) -> Iterator[Finding]:
    """After an optimizer step that clips, parameters are those of the model whose gradients were scaled by the norm
    over all stages, the 2-norm or the maximum, with a tied parameter counted once, in one stage or in several;
    gradients whose norm is below the limit are not changed.

    What an engine reports as the norm is one thing (TRN-17), by what it scales is another: ranks that scale by
    their own norms train another model, and the loss still falls.
    """
    yield from updates_are_right(evidence)


@requirement(
    "TRN-23",
    title="Master weights",
    level=MUST,
    about=(Focus.MASTERS,),
    trains=True,
    needs=(Feature.STATE,),
    promise=(
        contract("Plan.master_weights: the optimizer steps float32 copies of the parameters"),
        paper("Mixed Precision Training (arXiv:1710.03740), section 3.1"),
    ),
)
def master_weights(evidence: Evidence) -> Iterator[Finding]:
    """With bfloat16 parameters and float32 copies of them, many updates that are each too small for bfloat16 add up
    to the reference's; after a state is loaded, updates start from it.

    Without copies the model stops learning when updates become small, and the loss only looks as if it had
    converged. Weights that do not reach the copies are overwritten by the first step.
    """
    yield from updates_are_right(evidence)
    yield from masters_are_kept(evidence)


@requirement(
    "TRN-27",
    title="Clipped copies",
    level=MUST,
    about=(Focus.CLIPPED_COPIES, Focus.CLIPPED_SCALED),
    costly=True,
    trains=True,
    needs=(Feature.STATE,),
    promise=(
        contract(
            "Plan.clipping: with float32 copies it is their gradients that are clipped, without a scale"
        ),
        documented(
            "Automatic Mixed Precision examples, gradient clipping: gradients are unscaled before they are clipped",
            "notes/amp_examples.html#gradient-clipping",
        ),
    ),
)
def clipped_copies(evidence: Evidence) -> Iterator[Finding]:
    """Where float32 copies of 16-bit parameters are stepped and gradients are clipped, parameters are those of copies
    whose gradients were scaled by the norm over all stages; with a scaled loss, by the norm of gradients without the
    scale.

    Most large models are trained like this: a norm of scaled gradients clips too much or nothing, as the scale is, and
    a copy whose gradient was taken before it was clipped moves as if nothing had been clipped.
    """
    yield from updates_are_right(evidence)
    yield from masters_are_kept(evidence)


@requirement(
    "TRN-26",
    title="Sums in float32",
    level=MUST,
    about=(Focus.FLOAT32_SUMS,),
    trains=True,
    promise=(
        contract("Plan.float32_sums: gradients of bfloat16 parameters are added up in float32"),
        Promise(
            "megatron-core, grad_reduce_in_fp32: gradients are reduced in float32",
            "https://docs.nvidia.com/megatron-core/developer-guide/latest/apidocs/core/"
            "core.distributed.distributed_data_parallel_config.html",
        ),
        Promise(
            "DeepSpeed, grad_accum_dtype: gradients of bfloat16 parameters are accumulated in float32 by default",
            "https://github.com/microsoft/DeepSpeed/pull/4713",
        ),
    ),
)
def sums_in_float32(evidence: Evidence) -> Iterator[Finding]:
    """Gradients of bfloat16 parameters are added up in float32, over microbatches and steps, and returned in float32:
    256 and 1 are 257, where bfloat16 has 256.

    With many microbatches most of them are small against the sum, and in 16 bits they add nothing to it. The loss
    still falls, only more slowly the larger the batch is.
    """
    yield from gradients_are_right(evidence)
    yield from sums_are_exact(evidence)


@requirement(
    "TRN-24",
    title="Scaled losses",
    level=MUST,
    about=(Focus.SCALED, Focus.SCALED_AUTOCAST),
    trains=True,
    needs=(Feature.STATE,),
    promise=(
        contract(
            "Plan.loss_scaling: no rank steps where any gradient is not finite, and all lower the scale"
        ),
        documented(
            "Automatic Mixed Precision, gradient scaling: a step with infs or NaNs is skipped, the scale updated",
            "amp.html#gradient-scaling",
        ),
        paper("Mixed Precision Training (arXiv:1710.03740), section 3.2"),
    ),
)
def scaled_losses(evidence: Evidence) -> Iterator[Finding]:
    """Where the scaled gradient of one parameter of one stage overflows, no rank changes a parameter, and every rank
    lowers its scale alike; the next step is that of the gradients without a scale. So it is for models in float16, and
    for those in float32 that are trained under autocast in float16.

    Each rank sees its own gradients only. If one skips and the others step, the stages belong to different models
    from then on, and nothing fails.
    """
    yield from updates_are_right(evidence)
    yield from scales_are_right(evidence)


@requirement(
    "TRN-8",
    title="Tied weights",
    level=MUST,
    about=(Focus.TIED, Focus.TIED_STAGES),
    promise=paper("Using the Output Embedding to Improve Language Models (arXiv:1608.05859)"),
)
def tied_weights(evidence: Evidence) -> Iterator[Finding]:
    """A weight or a bias that two modules of a stage share has one name and, once, the sum of both gradients.
    A parameter that several stages share, on one rank or on different ranks, has in each of them the sum of
    all their gradients.

    Code that walks parameters module by module, or finds weight gradients by walking the graph, meets a tied
    one twice. Tied input and output embeddings stand in the first and the last stage, and neither stage sees
    what the other adds.
    """
    yield from outputs_are_right(evidence)
    yield from gradients_are_right(evidence)
