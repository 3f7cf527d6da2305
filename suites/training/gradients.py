"""Gradients: values, scale, accumulation."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.adapter import Feature
from pipeconform.case.case import Train
from pipeconform.case.focus import Focus
from pipeconform.judge.conditions import SEVERAL_STAGES
from pipeconform.judge.evidence import Evidence, Finding, shown_step
from pipeconform.judge.forward import outputs_are_right
from pipeconform.judge.judgement import requirement
from pipeconform.judge.norms import gradient_norm_is_right
from pipeconform.judge.recomputed import stages_are_computed_again
from pipeconform.judge.relations import uniform_ratio
from pipeconform.judge.training import (
    gradients_are_right,
    input_gradients_are_right,
    losses_and_gradients_are_right,
    losses_are_right,
)
from pipeconform.spec.catalogue import MUST, Promise

from ..promises import FULL_MODEL, contract, documented, in_source, paper

_CROSSING = (Focus.BOUNDARY, Focus.NO_GRAD, Focus.DTYPE)


@requirement(
    "TRN-1",
    title="Gradients",
    level=MUST,
    about=(Focus.PLAIN,),
    trains=True,
    promise=paper("GPipe (arXiv:1811.06965), section 2.3: gradients are consistent with one device"),
)
def gradients_equal_the_references(evidence: Evidence) -> Iterator[Finding]:
    """Every parameter gradient of every stage equals the reference's within its numeric class, after the first
    step and after later ones.

    A right-looking loss with wrong gradients is the most expensive defect of all.
    """
    yield from gradients_are_right(evidence)


@requirement(
    "TRN-3",
    title="Gradient scale",
    level=MUST,
    about=(Focus.PLAIN, Focus.SUM),
    trains=True,
    promise=(
        documented(
            "torch.distributed.pipelining documentation, scale_grads",
            "distributed.pipelining.html#torch.distributed.pipelining.schedules.PipelineScheduleSingle",
        ),
        paper("Megatron-LM (arXiv:2104.04473)"),
    ),
)
def gradient_scale(evidence: Evidence) -> Iterator[Finding]:
    """With a mean-reduced loss and equal microbatches, every stage's gradient is that of the full batch's
    mean, for every m; with a sum-reduced loss it is that of the sum. Every stage has the same scale.

    A released engine once scaled a single stage by a quarter, while the loss was exact.
    """
    wrong = {(f.step, f.stage, f.rank) for f in gradients_are_right(evidence)}
    for expected in evidence.runs(Train):
        for s, right in expected.gradients.items():
            for one in evidence.owners(s):
                ratio = uniform_ratio(right, shown_step(one, expected.step).gradients.get(s, {}))
                if ratio is not None and (expected.step, s, one.rank) in wrong:
                    m = len(evidence.sizes(expected.step))
                    yield Finding(
                        kind="scale",
                        message=f"stage {s}'s gradients are {ratio:.6g} times the reference's (m = {m}, "
                        f"{evidence.case.loss.reduction}-reduced loss)",
                        step=expected.step,
                        rank=one.rank,
                        stage=s,
                    )


@requirement(
    "TRN-4",
    title="Accumulation over steps",
    level=MUST,
    about=(Focus.ACCUMULATE,),
    trains=True,
    promise=documented("torch.autograd: gradients accumulate", "generated/torch.autograd.backward.html"),
)
def accumulation_over_steps(evidence: Evidence) -> Iterator[Finding]:
    """A step scales only what it contributed: gradients accumulated earlier are not rescaled, and k steps
    without zero_grad give the sum of their gradients.

    Dividing the accumulated gradient by m at the end of each step shrinks every earlier step's share again.
    """
    yield from gradients_are_right(evidence)


@requirement(
    "TRN-7",
    title="Input gradients",
    level=MUST,
    about=(Focus.INPUTS,),
    trains=True,
    among=(Focus.KWARGS, Focus.RULES),
    promise=in_source("torch.distributed.pipelining, _split_tensor", "distributed/pipelining/microbatch.py"),
)
def input_gradients(evidence: Evidence) -> Iterator[Finding]:
    """Inputs of the first stage, and keyword arguments of any stage, that require a gradient receive it,
    scaled as declared; an argument that every microbatch gets whole receives the sum over all microbatches.

    Adversarial training, embeddings outside the pipeline and prompt tuning need these gradients.
    """
    yield from input_gradients_are_right(evidence)


@requirement(
    "TRN-15",
    title="Gradients of boundary tensors",
    level=MUST,
    about=(Focus.GRADIENT_LAYOUT, Focus.IGNORED),
    trains=True,
    condition=SEVERAL_STAGES,
    promise=(
        FULL_MODEL,
        documented(
            "torch.Tensor documentation, views: strides belong to a tensor's form and not to its value",
            "tensor_view.html",
        ),
        documented(
            "torch.autograd documentation, default gradient layouts: promised for .grad of parameters only",
            "autograd.html#default-gradient-layouts",
        ),
    ),
)
def boundary_gradients_of_any_layout(evidence: Evidence) -> Iterator[Finding]:
    """Gradients of boundary tensors are right in whatever form they come: absent, expanded from one number
    (stride 0), or not contiguous.

    Autograd promises no layout; an engine that sends the memory as it lies sends other numbers.
    """
    yield from gradients_are_right(evidence)


@requirement(
    "TRN-11",
    title="Activation checkpointing",
    level=MUST,
    about=(Focus.CHECKPOINT, Focus.REENTRANT),
    trains=True,
    tolerates=(Focus.REENTRANT,),
    echoes=True,
    promise=(
        documented("torch.utils.checkpoint documentation", "checkpoint.html"),
        paper("Training Deep Nets with Sublinear Memory Cost (arXiv:1604.06174)"),
    ),
)
def activation_checkpointing(evidence: Evidence) -> Iterator[Finding]:
    """Stages that use non-reentrant activation checkpointing, also with dropout, have the reference's losses
    and gradients; with reentrant checkpointing they have them too, or every rank ends with an error.

    The backward runs the forward again, which takes the same mode, weights, inputs and random numbers as the
    first time.
    """
    yield from losses_and_gradients_are_right(evidence)


@requirement(
    "TRN-30",
    title="Recomputation by the engine",
    level=MUST,
    about=(Focus.RECOMPUTED,),
    trains=True,
    promise=(
        FULL_MODEL,
        contract("Plan.recompute: values, gradients and random numbers are those without"),
        paper("GPipe (arXiv:1811.06965), section 2.3: accelerators recompute the forward in the backward"),
    ),
)
def recomputation_by_the_engine(evidence: Evidence) -> Iterator[Finding]:
    """An engine that keeps no activations and computes stages again in the backward has the losses and gradients of
    one that keeps them: of tokens, of several tensors between stages with and without a gradient, and with dropout.

    What goes into a stage need not require a gradient for its parameters to get one. Of several microbatches at least
    one is computed again.
    """
    yield from losses_and_gradients_are_right(evidence)
    yield from stages_are_computed_again(evidence)


@requirement(
    "TRN-16",
    title="Half precision and bfloat16",
    level=MUST,
    about=(Focus.DTYPE,),
    trains=True,
    among=_CROSSING,
    condition=SEVERAL_STAGES,
    promise=Promise(
        "Higham, Accuracy and Stability of Numerical Algorithms, chapter 3",
        "https://doi.org/10.1137/1.9780898718027",
    ),
)
def half_precision_and_bfloat16(evidence: Evidence) -> Iterator[Finding]:
    """Stages in float16 and bfloat16 have the reference's losses and gradients within the error that another
    order of the same operations can cause.

    One more rounding on the way is invisible in a loss and several times larger than what the dtype explains.
    """
    yield from losses_are_right(evidence)
    yield from gradients_are_right(evidence)


@requirement(
    "TRN-18",
    title="Module state kept for the backward",
    level=MUST,
    about=(Focus.STATEFUL,),
    trains=True,
    promise=(
        FULL_MODEL,
        documented(
            "torch.distributed.pipelining documentation, PipelineStage: a stage wraps the given module",
            "distributed.pipelining.html#torch.distributed.pipelining.stage.PipelineStage",
        ),
    ),
)
def module_state_survives(evidence: Evidence) -> Iterator[Finding]:
    """What a module stores on itself in a forward, for the backward of that forward, is still there when the
    backward runs, with any number of microbatches in flight.

    Quantisers and routers keep statistics per forward; an engine that copies, restores or swaps modules
    between microbatches loses them.
    """
    yield from outputs_are_right(evidence)
    yield from gradients_are_right(evidence)


@requirement(
    "TRN-17",
    title="Gradient norm over stages",
    level=MUST,
    about=(Focus.PLAIN, Focus.FROZEN, Focus.TIED, Focus.TIED_STAGES, Focus.UNUSED),
    trains=True,
    needs=(Feature.GRADIENT_NORM,),
    promise=(
        paper("On the difficulty of training recurrent neural networks (arXiv:1211.5063), section 3.2"),
        documented("torch.nn.utils.clip_grad_norm_", "generated/torch.nn.utils.clip_grad_norm_.html"),
    ),
)
def gradient_norm_over_stages(evidence: Evidence) -> Iterator[Finding]:
    """The norm of all gradients that an implementation reports, for clipping, is the root of the sum of
    squares over every parameter of every stage, with a tied one counted once, in one stage or in several, and is the
    same on every rank.

    Ranks that clip by different norms train another model, and nothing crashes.
    """
    yield from gradient_norm_is_right(evidence)
