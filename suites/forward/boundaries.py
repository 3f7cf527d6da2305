"""What crosses from stage to stage."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case.focus import Focus
from pipeconform.judge.conditions import SEVERAL_STAGES
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.forward import (
    boundaries_arrive,
    containers_are_kept,
    outputs_are_right,
    tensors_without_gradient_arrive,
)
from pipeconform.judge.judgement import requirement
from pipeconform.judge.training import gradients_are_right, losses_and_gradients_are_right
from pipeconform.spec.catalogue import MUST

from ..promises import FULL_MODEL, MISMATCHES, contract, documented, in_source, paper

_CROSSING = (Focus.BOUNDARY, Focus.NO_GRAD, Focus.DTYPE)


@requirement(
    "FWD-4",
    title="Containers",
    level=MUST,
    about=(Focus.BOUNDARY,),
    condition=SEVERAL_STAGES,
    promise=documented(
        "torch.distributed.pipelining documentation, PipelineStage",
        "distributed.pipelining.html#torch.distributed.pipelining.stage.PipelineStage",
    ),
)
def containers_mean_what_they_say(evidence: Evidence) -> Iterator[Finding]:
    """Boundaries of several tensors arrive complete and in order; a 1-tuple stays a 1-tuple; a list, a tuple
    and a single tensor arrive as what they are.

    Normalising containers on the way changes the call that the next stage, the loss or the user makes.
    """
    yield from containers_are_kept(evidence)
    yield from gradients_are_right(evidence)


@requirement(
    "FWD-5",
    title="Boundary tensors without gradient",
    level=MUST,
    about=(Focus.NO_GRAD,),
    condition=SEVERAL_STAGES,
    promise=FULL_MODEL,
)
def tensors_without_gradient_arrive_unchanged(evidence: Evidence) -> Iterator[Finding]:
    """Boundary tensors that need no gradient (integer positions, boolean masks, float buffers) arrive
    unchanged at every later stage, and receive no gradient.

    An engine that assumes that every boundary tensor is differentiable crashes, hangs, or sends a gradient
    that no stage expects.
    """
    yield from tensors_without_gradient_arrive(evidence)
    yield from gradients_are_right(evidence)


@requirement(
    "FWD-6",
    title="Boundary dtypes",
    level=MUST,
    about=(Focus.DTYPE,),
    among=_CROSSING,
    condition=SEVERAL_STAGES,
    promise=(FULL_MODEL, contract("BoundaryClaim: the dtypes that the implementation claims"), *MISMATCHES),
)
def boundary_dtypes_are_exact(evidence: Evidence) -> Iterator[Finding]:
    """Every dtype that the implementation claims for boundaries is transported exactly, also where one
    boundary mixes dtypes.

    A buffer of the wrong dtype reinterprets or rounds what it receives.
    """
    yield from boundaries_arrive(evidence)
    yield from gradients_are_right(evidence)


@requirement(
    "FWD-9",
    title="Keyword arguments",
    level=MUST,
    about=(Focus.KWARGS,),
    promise=documented(
        "torch.distributed.pipelining documentation, PipelineSchedule.step",
        "distributed.pipelining.html#torch.distributed.pipelining.schedules.PipelineScheduleSingle.step",
    ),
)
def keyword_arguments_reach_their_stage(evidence: Evidence) -> Iterator[Finding]:
    """Keyword arguments reach the stage that they are for, whether the first or a later one; tensors are
    split per microbatch, other values are replicated.

    If a keyword argument is not split, every microbatch gets the values of the first one.
    """
    yield from outputs_are_right(evidence)
    yield from gradients_are_right(evidence)


@requirement(
    "FWD-7",
    title="Memory layouts",
    level=MUST,
    about=(Focus.VIEWS, Focus.LAYOUT),
    tolerates=(Focus.VIEWS, Focus.LAYOUT),
    echoes=True,
    condition=SEVERAL_STAGES,
    promise=(
        FULL_MODEL,
        documented(
            "torch.Tensor documentation, views: strides belong to a tensor's form and not to its value",
            "tensor_view.html",
        ),
    ),
)
def views_arrive_or_are_refused(evidence: Evidence) -> Iterator[Finding]:
    """Stage outputs that are views, non-contiguous or expanded (stride 0) arrive at the next stage with the
    right values, or an error says that they are not supported and every rank ends; they are never scrambled. The
    last stage may hand on what it was given: then the caller gets that, with the right values.

    Transport makes a tensor contiguous; a hand-over on the same rank does not.
    """
    yield from boundaries_arrive(evidence)
    yield from outputs_are_right(evidence)
    yield from gradients_are_right(evidence)


@requirement(
    "FWD-8",
    title="Numbers of dimensions and sizes",
    level=MUST,
    about=(Focus.SHAPES,),
    condition=SEVERAL_STAGES,
    promise=documented(
        "torch.distributed.pipelining documentation, PipelineStage: outputs are tensors of any shape",
        "distributed.pipelining.html#torch.distributed.pipelining.stage.PipelineStage",
    ),
)
def any_number_of_dimensions_and_any_size(evidence: Evidence) -> Iterator[Finding]:
    """Boundary tensors with any number of dimensions, from none (0-d) to five and more, with dimensions of
    size 1 and, where claimed, of size 0, arrive with their shape and values, and so do their gradients.

    A 0-d tensor that becomes a vector broadcasts into a wrong result; an empty tensor that the sender skips
    and the receiver waits for hangs the run.
    """
    yield from boundaries_arrive(evidence)
    yield from gradients_are_right(evidence)


@requirement(
    "FWD-10",
    title="Skip connections",
    level=MUST,
    about=(Focus.SKIP,),
    condition=SEVERAL_STAGES,
    promise=paper("GPipe's skip connections as in torchgpipe (arXiv:2004.09910), section 3.2"),
)
def skip_connections(evidence: Evidence) -> Iterator[Finding]:
    """A tensor that one stage makes and later stages use, handed on unchanged by the stages between, arrives
    unchanged at each of them, and its gradient is the sum over all its uses.

    A tensor that a stage passes on is both its input and its output; an engine that detaches, frees or
    overwrites it loses part of the gradient.
    """
    yield from boundaries_arrive(evidence)
    yield from gradients_are_right(evidence)


@requirement(
    "FWD-12",
    title="Ignored inputs and outputs",
    level=MUST,
    about=(Focus.IGNORED,),
    condition=SEVERAL_STAGES,
    promise=documented(
        "torch.autograd: the gradient of what was not used is None", "generated/torch.autograd.grad.html"
    ),
)
def ignored_inputs_and_outputs(evidence: Evidence) -> Iterator[Finding]:
    """A stage may ignore any of its inputs, including the first, and an output may be used by no stage; all
    others are right in both directions.

    An ignored tensor has no gradient; an engine that takes this for an error, or for the end of the backward,
    fails on models with optional branches.
    """
    yield from boundaries_arrive(evidence)
    yield from gradients_are_right(evidence)


@requirement(
    "FWD-21",
    title="float8 at boundaries",
    level=MUST,
    about=(Focus.FLOAT8,),
    tolerates=(Focus.FLOAT8,),
    echoes=True,
    any_schedule=True,
    condition=SEVERAL_STAGES,
    promise=paper("FP8 Formats for Deep Learning (arXiv:2209.05433)"),
)
def float8_is_exact_or_refused(evidence: Evidence) -> Iterator[Finding]:
    """A boundary tensor in float8 arrives bit for bit, or an error says that it is not supported and every
    rank ends; it is never converted.

    Quantised activations are sent to save bytes; read as another 8-bit type they are noise.
    """
    yield from boundaries_arrive(evidence)
    yield from gradients_are_right(evidence)


@requirement(
    "FWD-33",
    title="Complex tensors at boundaries",
    level=MUST,
    about=(Focus.COMPLEX,),
    condition=SEVERAL_STAGES,
    promise=(
        FULL_MODEL,
        documented(
            "Autograd mechanics, autograd for complex numbers: complex tensors can need a gradient",
            "notes/autograd.html#autograd-for-complex-numbers",
        ),
    ),
)
def complex_tensors_cross(evidence: Evidence) -> Iterator[Finding]:
    """Complex boundary tensors arrive with both of their parts, and so do their gradients, if they need one.

    Fourier layers and rotary embeddings make such tensors. To ask whether a tensor has a floating dtype before a
    gradient is sent leaves them without one.
    """
    yield from boundaries_arrive(evidence)
    yield from gradients_are_right(evidence)


@requirement(
    "FWD-15",
    title="Objects among the keyword arguments",
    level=MUST,
    about=(Focus.OBJECTS,),
    any_schedule=True,
    promise=(
        contract("Batch: what is no tensor is replicated to every microbatch"),
        in_source(
            "torch.distributed.pipelining.microbatch, split_args_kwargs_into_chunks: values are sharded or replicated",
            "distributed/pipelining/microbatch.py",
        ),
    ),
)
def objects_reach_their_stage_whole(evidence: Evidence) -> Iterator[Finding]:
    """A keyword argument that is not a tensor (a number, a string, None, a list with one entry per sample, or
    a dict of these) reaches its stage whole in every microbatch, with the value given for this step.

    A list as long as the batch looks as if it could be split; one that is kept from the first step is stale
    in the second.
    """
    yield from outputs_are_right(evidence)
    yield from gradients_are_right(evidence)


@requirement(
    "FWD-22",
    title="Keyword arguments with a split of their own",
    level=MUST,
    about=(Focus.RULES,),
    any_schedule=True,
    promise=(
        documented(
            "torch.distributed.pipelining documentation, TensorChunkSpec: the dimension of each argument",
            "distributed.pipelining.html#torch.distributed.pipelining.microbatch.TensorChunkSpec",
        ),
        contract("Plan.kwarg_rules: how a keyword argument is split"),
    ),
)
def split_rules_of_keyword_arguments(evidence: Evidence) -> Iterator[Finding]:
    """A keyword argument with a split rule reaches its stage split by that rule in every microbatch: along
    the dimension that the rule names, whole although it is a tensor, or by the user's function. A rule is
    that of the argument of its name, in whatever order rules and arguments are given.

    Attention masks and rotary tables have their batch in another dimension or none at all; cut where the
    other arguments are cut, they still have a shape that runs.
    """
    yield from outputs_are_right(evidence)
    yield from gradients_are_right(evidence)


@requirement(
    "FWD-16",
    title="Another batch dimension",
    level=MUST,
    about=(Focus.BATCH_DIM,),
    promise=documented(
        "torch.distributed.pipelining documentation, args_chunk_spec and output_merge_spec",
        "distributed.pipelining.html#torch.distributed.pipelining.schedules.PipelineScheduleSingle",
    ),
)
def another_batch_dimension(evidence: Evidence) -> Iterator[Finding]:
    """When the batch is in dimension 1, inputs and targets are split there, and outputs are merged there.

    Sequence-first models are common; splitting dimension 0 cuts sequences and often still runs.
    """
    yield from outputs_are_right(evidence)
    yield from gradients_are_right(evidence)


@requirement(
    "FWD-32",
    title="Declared boundaries",
    level=MUST,
    about=(Focus.DECLARED,),
    condition=SEVERAL_STAGES,
    promise=documented(
        "torch.distributed.pipelining documentation, PipelineStage: input_args and output_args are example tensors",
        "distributed.pipelining.html#torch.distributed.pipelining.stage.PipelineStage",
    ),
)
def declared_boundaries_change_nothing(evidence: Evidence) -> Iterator[Finding]:
    """If the user declares what every stage takes and gives, outputs, losses and gradients are the same as without,
    also where the declaration says no more than shapes and dtypes: which tensors need a gradient, the model decides.

    Whoever declares boundaries makes examples with `torch.empty` or `torch.randn`, which need no gradient. An engine
    that believes them sends no gradients back.
    """
    yield from boundaries_arrive(evidence)
    yield from outputs_are_right(evidence)
    yield from losses_and_gradients_are_right(evidence)
