"""What modules do inside a stage."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case.focus import Focus
from pipeconform.judge.evidence import Evidence, Finding, shown_step
from pipeconform.judge.forward import (
    compilation_is_named,
    containers_are_kept,
    gradients_with_hooks,
    outputs_are_right,
)
from pipeconform.judge.judgement import requirement
from pipeconform.judge.training import gradients_are_right, losses_are_right
from pipeconform.spec.catalogue import MUST

from ..promises import FULL_MODEL, documented, in_source


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
    "FWD-17",
    title="The model's own hooks",
    level=MUST,
    about=(Focus.HOOKS,),
    promise=documented(
        "torch.nn.Module documentation, forward hooks",
        "generated/torch.nn.Module.html#torch.nn.Module.register_forward_hook",
    ),
)
def the_models_own_hooks_run_once(evidence: Evidence) -> Iterator[Finding]:
    """The model's forward and pre-forward hooks run once per microbatch, and its tensor hooks and its
    parameters' post-accumulate-grad hooks once per backward, in every step alike.

    Hooks collect statistics, scale gradients and help to debug; a dry run that fires them one more time in
    the first step corrupts what they count.
    """
    for expected in evidence.runs():
        for s, right in expected.hook_counts.items():
            owners = list(evidence.owners(s))
            counts = [shown_step(one, expected.step).hook_counts.get(s, {}) for one in owners]
            if evidence.capabilities.loss_over == "batch":
                # a backward pass over the whole batch adds to each parameter once
                m = len(evidence.sizes(expected.step))
                right = {k: n // m if k == "post_accumulate_grad" else n for k, n in right.items()}  # noqa: PLW2901
            for one in owners[:1]:
                # several owners of a stage share its microbatches
                mine = {kind: sum(each.get(kind, 0) for each in counts) for kind in right}
                for kind, count in right.items():
                    evidence.compared()
                    if mine.get(kind, 0) != count:
                        more = "more" if mine.get(kind, 0) > count else "fewer"
                        yield Finding(
                            kind=f"hooks ran {more} often",
                            message=f"the {kind.replace('_', '-')} hook in stage {s} ran {mine.get(kind, 0)} times "
                            f"for {len(evidence.sizes(expected.step))} microbatches; expected {count}",
                            step=expected.step,
                            rank=one.rank,
                            stage=s,
                        )
    yield from outputs_are_right(evidence)
    yield from gradients_with_hooks(evidence)


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
    """A stage that holds modules under torch.compile has the losses and gradients of the same modules without
    torch.compile; or, under a schedule that cannot run them, every rank raises an error that says so.

    A compiled region is one node of the graph: an engine that takes a stage's graph apart, to compute input
    gradients before weight gradients, finds no seam there.
    """
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
