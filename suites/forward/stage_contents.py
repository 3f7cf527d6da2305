"""What modules do inside a stage."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case.focus import Focus
from pipeconform.judge.conditions import SEVERAL_STAGES
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.forward import (
    compilation_is_named,
    containers_are_kept,
    outputs_are_right,
)
from pipeconform.judge.hooks import hooks_are_kept, hooks_that_ran
from pipeconform.judge.judgement import TIMELINE, requirement
from pipeconform.judge.kept_inputs import kept_inputs_stay
from pipeconform.judge.training import gradients_are_right, losses_are_right
from pipeconform.spec.catalogue import MUST, SHOULD

from ..promises import FULL_MODEL, contract, documented, in_source

_REGISTER_HOOK = documented(
    "torch.Tensor.register_hook documentation: called every time a gradient with respect to it is computed",
    "generated/torch.Tensor.register_hook.html",
)
_REGISTER_MULTI_GRAD_HOOK = documented(
    "torch.autograd.graph.register_multi_grad_hook documentation: called after the gradients of all its tensors "
    "have been computed",
    "autograd.html#torch.autograd.graph.register_multi_grad_hook",
)


@requirement(
    "FWD-13",
    title="Parameters shared inside a stage",
    level=MUST,
    about=(Focus.SHARED,),
    promise=(
        FULL_MODEL,
        documented("torch.autograd: gradients accumulate", "generated/torch.autograd.backward.html"),
    ),
)
def shared_parameters_in_a_stage(evidence: Evidence) -> Iterator[Finding]:
    """A submodule called twice in one stage gives the reference's outputs and gradients.

    Both uses contribute to one gradient.
    """
    yield from outputs_are_right(evidence)
    yield from gradients_are_right(evidence)


@requirement(
    "FWD-14",
    title="In-place operations",
    level=MUST,
    about=(Focus.INPLACE,),
    promise=documented(
        "Autograd mechanics, in-place operations with autograd: no gradient is silently wrong",
        "notes/autograd.html#in-place-operations-with-autograd",
    ),
)
def in_place_operations(evidence: Evidence) -> Iterator[Finding]:
    """In-place operations inside a stage do not corrupt another microbatch's values or gradients.

    A receive buffer or an output that is reused while a graph still needs it changes gradients silently.
    """
    yield from outputs_are_right(evidence)
    yield from gradients_are_right(evidence)


@requirement(
    "FWD-34",
    title="Batches that are changed in place",
    level=SHOULD,
    about=(Focus.CHANGED_BATCH,),
    tolerates=(Focus.CHANGED_BATCH,),
    promise=(
        FULL_MODEL,
        in_source(
            "torch.distributed.pipelining, PipelineStage, dynamic mode: metadata is inferred from the first microbatch",
            "distributed/pipelining/stage.py",
        ),
    ),
)
def batches_change_once(evidence: Evidence) -> Iterator[Finding]:
    """What the first stage does in place to its input, and a loss function to its target, happens once to every
    microbatch of a step.

    Images are scaled, and labels shifted, in place. A dry run on the batch itself, to learn shapes, does it once more.
    """
    yield from outputs_are_right(evidence)
    yield from losses_are_right(evidence)
    yield from gradients_are_right(evidence)


@requirement(
    "FWD-35",
    title="Inputs that a stage keeps",
    level=SHOULD,
    about=(Focus.KEEPING,),
    condition=SEVERAL_STAGES,
    promise=FULL_MODEL,
)
def inputs_stay_as_they_were(evidence: Evidence) -> Iterator[Finding]:
    """What a stage was given stays as it was for as long as the stage keeps it, in later steps, too.

    The states of the last segment, a queue of features and activations to log are kept. A receive buffer that serves
    every step puts the next step's values into them.
    """
    yield from kept_inputs_stay(evidence)


@requirement(
    "FWD-28",
    title="Stages that end in an activation",
    level=MUST,
    about=(Focus.ACTIVATIONS,),
    trains=True,
    promise=(
        FULL_MODEL,
        documented(
            "Autograd mechanics, saved tensors: some operations save their result for the backward",
            "notes/autograd.html#saved-tensors",
        ),
    ),
)
def stages_that_end_in_an_activation(evidence: Evidence) -> Iterator[Finding]:
    """A stage that hands on the result of an activation whose backward needs this result (ReLU, tanh, sigmoid,
    softmax) has the reference's outputs and gradients.

    An engine that frees an output once it was sent, or uses its memory again, destroys what autograd kept; linear
    maps and normalisations do not need their results, so most stages do not show it.
    """
    yield from outputs_are_right(evidence)
    yield from gradients_are_right(evidence)


@requirement(
    "FWD-29",
    title="Layers of language models",
    level=MUST,
    about=(Focus.DECODERS,),
    any_schedule=True,  # what matters is how it splits the backward: the first and the last differ
    promise=(
        FULL_MODEL,
        documented(
            "torch.nn.functional.scaled_dot_product_attention documentation: grouped-query attention, attn_mask",
            "generated/torch.nn.functional.scaled_dot_product_attention.html",
        ),
        documented(
            "torch.nn.Module.register_buffer documentation: buffers that are not persistent are no part of the state",
            "generated/torch.nn.Module.html#torch.nn.Module.register_buffer",
        ),
    ),
)
def layers_of_language_models(evidence: Evidence) -> Iterator[Finding]:
    """Stages made of decoder layers (RMSNorm, rotary embeddings, grouped-query causal attention, SwiGLU), with
    positions and masks as keyword arguments or without, have the reference's outputs, losses and gradients.

    These are the stages that pipelines are used for. Their tables of rotations are buffers outside of the state,
    their positions are integers and their masks truth values: an engine that fills stages from a state, casts what
    is given by keyword, or takes it for the same in every microbatch, is right on every linear map.
    """
    yield from outputs_are_right(evidence)
    yield from losses_are_right(evidence)
    yield from gradients_are_right(evidence)


@requirement(
    "FWD-17",
    title="The model's own hooks",
    level=MUST,
    about=(Focus.HOOKS,),
    observe=TIMELINE,
    promise=(
        FULL_MODEL,
        documented(
            "torch.nn.Module documentation, forward hooks: called every time after forward() has computed an output",
            "generated/torch.nn.Module.html#torch.nn.Module.register_forward_hook",
        ),
        _REGISTER_HOOK,
        documented(
            "torch.Tensor.register_post_accumulate_grad_hook documentation: runs after grad accumulation",
            "generated/torch.Tensor.register_post_accumulate_grad_hook.html",
        ),
    ),
)
def the_models_own_hooks_run_once(evidence: Evidence) -> Iterator[Finding]:
    """The model's forward and pre-forward hooks run once per microbatch, and its tensor hooks and its
    parameters' post-accumulate-grad hooks once per backward, in every step alike. Dry runs before a rank's
    first forward are the subject of FWD-25; they accumulate no gradient.

    Hooks collect statistics, scale gradients and help to debug; one that runs twice scales twice, and one
    that never runs is silently missing.
    """
    yield from hooks_are_kept(evidence)


@requirement(
    "FWD-25",
    title="Hooks in dry runs",
    level=SHOULD,
    about=(Focus.HOOKS,),
    observe=TIMELINE,
    promise=(
        FULL_MODEL,
        in_source(
            "torch.distributed.pipelining, PipelineStage, dynamic mode: metadata is inferred from the first microbatch",
            "distributed/pipelining/stage.py",
        ),
    ),
)
def dry_runs_fire_no_hooks(evidence: Evidence) -> Iterator[Finding]:
    """A dry run of a stage before a rank's first forward, to learn shapes, fires none of the model's hooks.

    A hook that counts or collects sees one microbatch more in the first step. Engines document that they run
    modules once more, and not that hooks stay out of it, so this is no MUST.
    """
    for one in hooks_that_ran(evidence):
        evidence.compared()
        if one.expected < one.count <= one.expected + one.in_dry_runs:
            yield one.finding(kind="hooks ran in a dry run")


@requirement(
    "FWD-26",
    title="Hooks on a stage's inputs",
    level=MUST,
    about=(Focus.INPUT_HOOKS,),
    trains=True,
    observe=TIMELINE,
    promise=(FULL_MODEL, _REGISTER_HOOK, _REGISTER_MULTI_GRAD_HOOK),
)
def hooks_on_inputs_belong_to_their_forward(evidence: Evidence) -> Iterator[Finding]:
    """A tensor hook that a stage registers on its input in a forward runs once, in the backward of that forward,
    in every step alike, and what it returns is the gradient that the stage before gets. A hook on the inputs
    together (``register_multi_grad_hook``) runs as often. Dry runs before a rank's first forward may add to the
    first step.

    A receive buffer that serves every step keeps the hooks of earlier steps: a hook that scales scales once more
    in each of them, and the loss shows nothing. Hooks on inputs together are how FLOPs are counted and modules
    tracked around a step; where an engine asks for a leaf's gradient alone, torch refuses them.
    """
    yield from hooks_are_kept(evidence)


@requirement(
    "FWD-27",
    title="Hooks on parameters and on a module's backward",
    level=MUST,
    about=(Focus.GRADIENT_HOOKS,),
    trains=True,
    observe=TIMELINE,
    promise=(
        FULL_MODEL,
        _REGISTER_HOOK,
        documented(
            "torch.nn.Module documentation, full backward hooks: called every time a module's gradients are computed",
            "generated/torch.nn.Module.html#torch.nn.Module.register_full_backward_hook",
        ),
    ),
)
def hooks_on_gradients_run_once(evidence: Evidence) -> Iterator[Finding]:
    """A tensor hook on a parameter runs once per backward that adds to it, and a module's full backward hook and
    pre-hook once per backward of the module; gradients are those that the hooks return.

    Clipping by value, masks of pruned weights and gradient penalties are written as such hooks; an engine that
    computes gradients in parts may pass them by, or twice.
    """
    yield from hooks_are_kept(evidence)


@requirement(
    "FWD-30",
    title="Block masks",
    level=MUST,
    about=(Focus.BLOCK_MASKS,),
    any_schedule=True,
    promise=(
        contract("Feature.BLOCK_MASKS: block masks are split with the batch"),
        documented(
            "torch.nn.attention.flex_attention.create_block_mask documentation: mask_mod is given the batch's index",
            "nn.attention.flex_attention.html#torch.nn.attention.flex_attention.create_block_mask",
        ),
    ),
)
def block_masks_are_split(evidence: Evidence) -> Iterator[Finding]:
    """A block mask of flex attention among the keyword arguments is split with the batch: each microbatch has the
    rows of its samples, and the mask's rule is asked for these samples; a mask with a single row is given whole.

    The tables of a block mask are tensors and its rule is a function: an engine that gives every microbatch the whole
    mask, or splits the tables and not the rule, has later samples attend by the documents of the first.
    """
    yield from outputs_are_right(evidence)
    yield from losses_are_right(evidence)
    yield from gradients_are_right(evidence)


@requirement(
    "FWD-20",
    title="Compiled stages",
    level=MUST,
    about=(Focus.COMPILED,),
    tolerates=(Focus.COMPILED,),
    echoes=True,  # a schedule looks at the stages of its own rank
    refusal=compilation_is_named,
    costly=True,
    promise=in_source(
        "torch.distributed.pipelining schedules, torch.compile compatibility",
        "distributed/pipelining/schedules.py",
    ),
)
def compiled_stages(evidence: Evidence) -> Iterator[Finding]:
    """A stage that holds modules under torch.compile has the outputs, losses and gradients of the same modules
    without torch.compile; or, under a schedule that cannot run them, every rank raises an error that says so.

    A compiled region is one node of the graph: an engine that takes a stage's graph apart, to compute input
    gradients before weight gradients, finds no seam there.
    """
    yield from outputs_are_right(evidence)
    yield from losses_are_right(evidence)
    yield from gradients_are_right(evidence)


@requirement(
    "FWD-18",
    title="Autocast",
    level=MUST,
    about=(Focus.AUTOCAST,),
    any_schedule=True,
    promise=documented("torch.autocast documentation", "amp.html#torch.autocast"),
)
def autocast(evidence: Evidence) -> Iterator[Finding]:
    """A step under torch.autocast has the reference's dtypes and values at every boundary, and the
    reference's gradients.

    Autocast is a state of the thread: an engine that computes in another thread, or fixes the dtype of its
    buffers beforehand, loses it.
    """
    yield from containers_are_kept(evidence)
    yield from gradients_are_right(evidence)
