"""Orders of steps, repetition, building."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from pipeconform.adapter import Feature
from pipeconform.case.case import Eval, Optimize, Restart, Sgd, Train
from pipeconform.case.focus import Focus
from pipeconform.judge.evidence import Evidence, Finding, shown_step
from pipeconform.judge.finding import of_first_wrong_step
from pipeconform.judge.forward import outputs_are_right
from pipeconform.judge.judgement import TIMELINE, requirement
from pipeconform.judge.lifecycle import names_of_state, traces_of_evaluation, traces_of_evaluations
from pipeconform.judge.masters import masters_are_kept
from pipeconform.judge.named import accepted
from pipeconform.judge.residue import grown, held_by, kept_by, lived_on_by
from pipeconform.judge.scales import scales_are_right
from pipeconform.judge.schedules import size_of
from pipeconform.judge.training import (
    buffers_are_right,
    gradients_are_right,
    losses_and_gradients_are_right,
    restored_is_saved,
    state_is_right,
    updates_are_right,
)
from pipeconform.observe.observation import Watched
from pipeconform.spec.catalogue import MUST, SHOULD, Promise

from ..promises import FULL_MODEL, contract, documented, in_source, paper

_ROUNDS: frozenset[Watched] = frozenset({"memory", "no outputs", "rounds", "timeline"})


@requirement(
    "LIF-1",
    title="Order of training and evaluation",
    level=MUST,
    about=(Focus.EVAL, Focus.VARYING),
    among=(Focus.DROPOUT,),
    promise=(
        FULL_MODEL,
        documented(
            "torch.nn.Module.eval documentation", "generated/torch.nn.Module.html#torch.nn.Module.eval"
        ),
        in_source(
            "torch.distributed.pipelining documentation, PipelineSchedule.eval: forward only",
            "distributed/pipelining/schedules.py",
        ),
    ),
)
def any_order_of_training_and_evaluation(evidence: Evidence) -> Iterator[Finding]:
    """Training and evaluation steps in any order give right values, with other batch sizes and numbers of
    microbatches where that is claimed; evaluation never touches gradients, buffers or the random state.

    Engines keep run-time state between steps; an evaluation before, between or after training steps exposes
    what is stale.
    """
    yield from outputs_are_right(evidence)
    yield from losses_and_gradients_are_right(evidence)
    for expected in evidence.runs(Eval):
        for one in evidence.members:
            yield from traces_of_evaluation(evidence, one, expected.step)
        for one in evidence.members:
            if shown_step(one, expected.step).rng_moved:
                yield Finding(
                    kind="evaluation consumed random numbers",
                    message="evaluation moved the process's random state; the model draws nothing there",
                    step=expected.step,
                    rank=one.rank,
                )


@requirement(
    "LIF-9",
    title="A second schedule around the same stages",
    level=MUST,
    about=(Focus.SECOND_SCHEDULE,),
    promise=(
        FULL_MODEL,
        contract("Feature.SECOND_SCHEDULE: evaluations by a schedule without a loss around the same stages"),
    ),
)
def a_second_schedule_leaves_training_alone(evidence: Evidence) -> Iterator[Finding]:
    """A schedule without a loss, made around the stages of the training schedule, evaluates them: outputs, losses and
    gradients are right in every step, and evaluation never touches gradients.

    Receive buffers and what is known about tensors between stages may belong to the stages. A schedule that makes them
    anew for activations without gradients then takes away what the training schedule relies on.
    """
    yield from outputs_are_right(evidence)
    yield from losses_and_gradients_are_right(evidence)
    yield from traces_of_evaluations(evidence)


@requirement(
    "LIF-5",
    title="Determinism",
    level=MUST,
    about=(Focus.PLAIN, Focus.DROPOUT),
    repeats=True,
    promise=documented(
        "torch reproducibility notes: the same operations with the same seeds on one machine",
        "notes/randomness.html",
    ),
)
def determinism(evidence: Evidence) -> Iterator[Finding]:
    """The same case run twice gives bitwise equal results, in the same processes and in new ones.

    A result that depends on timing is a race.
    """
    yield from ()


@requirement(
    "LIF-6",
    title="Building changes nothing",
    level=MUST,
    about=(Focus.PLAIN, Focus.BUFFERS, Focus.DROPOUT, Focus.FROZEN),
    promise=(
        FULL_MODEL,
        documented(
            "torch.distributed.pipelining documentation, PipelineStage: a stage wraps the given module",
            "distributed.pipelining.html#torch.distributed.pipelining.stage.PipelineStage",
        ),
        documented(
            "torch reproducibility notes: the same seed, the same random numbers", "notes/randomness.html"
        ),
    ),
)
def building_changes_nothing(evidence: Evidence) -> Iterator[Finding]:
    """Building a pipeline does not change parameters, buffers, random state, gradient flags or training mode.

    Random numbers that only some ranks consume make replicas diverge silently.
    """
    for one in evidence.members:
        evidence.compared()
        for change in one.build_changes:
            kind = "build moved the random state" if "random" in change else "build changed a module"
            yield Finding(kind=kind, message=f"building changed something: {change}", rank=one.rank)


@requirement(
    "LIF-2",
    title="Nothing is differentiated in evaluation",
    level=MUST,
    about=(Focus.GUARDED,),
    promise=documented(
        "torch.inference_mode documentation", "generated/torch.autograd.grad_mode.inference_mode.html"
    ),
)
def evaluation_differentiates_nothing(evidence: Evidence) -> Iterator[Finding]:
    """Evaluation records no graph and returns nothing that requires a gradient, also when its caller has
    switched gradients off (no_grad, inference_mode); training steps before and after it are right.

    A graph that is recorded and thrown away costs the memory that evaluation should save; buffers made in
    inference mode cannot be used in training.
    """
    for expected in evidence.runs(Eval):
        for one in evidence.members:
            shown = shown_step(one, expected.step)
            evidence.compared(len(shown.forwards))
            call = next((call for call in shown.forwards if call.grad_enabled), None)
            if call is not None:
                text = f"stage {call.stage} was evaluated with gradients switched on"
                yield Finding(
                    kind="evaluation records a graph",
                    message=text,
                    step=expected.step,
                    rank=one.rank,
                    stage=call.stage,
                )
            if shown.differentiable:
                text = f"what the evaluation returned on rank {one.rank} requires a gradient"
                yield Finding(
                    kind="evaluation result requires grad", message=text, step=expected.step, rank=one.rank
                )
    yield from outputs_are_right(evidence)
    yield from gradients_are_right(evidence)


@requirement(
    "LIF-4",
    title="State",
    level=MUST,
    about=(Focus.LOAD,),
    among=(Focus.BUFFERS,),
    needs=(Feature.STATE,),
    any_schedule=True,
    promise=documented(
        "torch.nn.Module.state_dict documentation",
        "generated/torch.nn.Module.html#torch.nn.Module.state_dict",
    ),
)
def state_is_the_whole_models(evidence: Evidence) -> Iterator[Finding]:
    """Together, the states of all stages have every parameter and buffer of the model under its name, on the
    ranks that own it and nowhere else; a state that is loaded, before the first step or after one, is what
    the next step uses.

    Checkpoints are written and read by these names; if the engine copied the weights when it was built, it
    goes on training with the old ones.
    """
    for expected in evidence.expected.steps:
        for one in evidence.members:
            yield from names_of_state(evidence, one, expected)
    yield from state_is_right(evidence)
    yield from outputs_are_right(evidence)
    yield from gradients_are_right(evidence)


@requirement(
    "LIF-10",
    title="Training that is resumed",
    level=MUST,
    about=(Focus.RESTART,),
    trains=True,
    promise=(
        contract("Feature.SAVING: a pipeline goes on from what one before it has saved"),
        Promise(
            "PyTorch tutorial on general checkpoints: for resuming, more is saved than the model's state",
            "https://docs.pytorch.org/tutorials/recipes/recipes/saving_and_loading_a_general_checkpoint.html",
        ),
    ),
)
def training_is_resumed(evidence: Evidence) -> Iterator[Finding]:
    """A pipeline that is built anew, from other parameters, and restores what the one before it has saved, goes on as
    if there had been no interruption: every parameter and buffer is what it was, bit for bit, and losses, gradients
    and updates are right, with the optimizer's state, float32 copies of parameters and the scale of the loss.

    Long trainings are resumed many times. A weight or a momentum that is missing in what was saved is replaced by what
    the new pipeline begins with, and the loss only looks a little worse.
    """
    for finding in of_first_wrong_step(_everything_goes_on(evidence)):
        yield _beside_what_was_restored(evidence, finding)


def _beside_what_was_restored(evidence: Evidence, finding: Finding) -> Finding:
    """Of a first update after the restart that is wrong alone, say what is known to be right."""
    program, stepping = evidence.case.program, Train if evidence.capabilities.fused_optimizer else Optimize
    restart = next((i for i, step in enumerate(program) if isinstance(step, Restart)), len(program))
    first = next((i for i in range(restart, len(program)) if isinstance(program[i], stepping)), None)
    if finding.kind != "parameter value" or finding.step != first:
        return finding
    text = "parameters, losses and gradients are right until this first update after the restart"
    return dataclasses.replace(finding, message=f"{finding.message}\n{text}")


def _everything_goes_on(evidence: Evidence) -> Iterator[Finding]:
    yield from restored_is_saved(evidence)
    yield from outputs_are_right(evidence)
    yield from losses_and_gradients_are_right(evidence)
    yield from buffers_are_right(evidence)
    optimizer = evidence.case.optimizer
    if optimizer is not None:
        yield from updates_are_right(evidence)
    if isinstance(optimizer, Sgd) and optimizer.masters:
        yield from masters_are_kept(evidence)
    if isinstance(optimizer, Sgd) and optimizer.scaling is not None:
        yield from scales_are_right(evidence)


@requirement(
    "LIF-3",
    title="What stays behind",
    level=SHOULD,
    about=(Focus.PLAIN,),
    observe=_ROUNDS,
    any_schedule=True,
    promise=documented(
        "Autograd mechanics, saved tensors: the graph is freed by the backward",
        "notes/autograd.html#saved-tensors",
    ),
)
def nothing_stays_behind(evidence: Evidence) -> Iterator[Finding]:
    """Once a step has ended and its caller has dropped the results, no graph, saved tensor or stage output of
    the step is alive, at least where the caller asked for no outputs; and no tensor, thread, descriptor or
    process group is left behind by every one of 10 more steps, or by every one of 10 more pipelines that are
    built and closed.

    Logits that live until the next step take memory that the optimizer needs; what every step leaves behind
    ends a run days later.
    """
    for expected in evidence.runs():
        for one in evidence.members:
            shown = shown_step(one, expected.step)
            kept = kept_by(one, expected.step)
            evidence.compared(len(shown.forwards))
            left = [held for held in shown.held or () if held.before < 0]
            stages = {call.call: call.stage for call in shown.forwards}
            if left:
                stage = stages.get(left[0].call)
                text = (
                    f"when the step has ended and its results are gone, {sum(h.tensors for h in left)} saved "
                    f"tensors of {len(left)} forwards are alive, the first of stage {stage}"
                    f"{held_by(kept.holds_graph)}"
                )
                yield Finding(kind="graph kept", message=text, step=expected.step, rank=one.rank, stage=stage)
            if kept.outputs:
                text = (
                    f"when the step has ended and its results are gone, outputs of {len(kept.outputs)} forwards "
                    f"are alive, the first of stage {kept.outputs[0]}{held_by(kept.holds_output)}"
                )
                yield Finding(
                    kind="outputs kept",
                    message=text,
                    step=expected.step,
                    rank=one.rank,
                    stage=kept.outputs[0],
                )
    for one in evidence.shown:
        lived_on = lived_on_by(one)
        evidence.compared((len(lived_on.steps) > 1) + (len(lived_on.rounds) > 1))
        yield from grown(lived_on.steps, "step", one.rank)
        yield from grown(lived_on.rounds, "pipeline", one.rank)


@requirement(
    "LIF-7",
    title="Memory of activations",
    level=MUST,
    about=(Focus.PLAIN,),
    trains=True,
    observe=TIMELINE | {"memory"},
    named=True,
    promise=(
        paper("DAPPLE (arXiv:2007.01045)"),
        paper("PipeDream-2BW (arXiv:2006.09503)"),
    ),
)
def activations_are_bounded(evidence: Evidence) -> Iterator[Finding]:
    """While a step runs, a rank keeps the activations of at most as many forwards as the named schedule's
    bound allows, saved tensors and received inputs alike, however many microbatches there are.

    The schedule was chosen for this bound; graphs kept until the step ends, or one buffer per microbatch,
    grow with m all the same.
    """
    claim = evidence.capabilities.schedule(evidence.case.schedule)
    assert claim is not None
    assert claim.family is not None
    for expected in evidence.runs(Train):
        m = len(evidence.sizes(expected.step))
        size = size_of(evidence, m)
        families = [family for family in accepted(claim.family) if family.refusal(size) is None]
        for one in evidence.members if families else ():
            assert one.pipeline_rank is not None
            bound = max(family.in_flight_weight(one.pipeline_rank, size) for family in families)
            kept = kept_by(one, expected.step)
            evidence.compared()
            inputs = "inputs of {} forwards are kept to the end of the step"
            for kind, most, what, holder in (
                ("activations", kept.at_once, "tensors saved by {} forwards are alive at a time", ""),
                ("boundary tensors", kept.inputs, inputs, kept.holds_input),
            ):
                if most > bound:
                    text = (
                        f"on pipeline rank {one.pipeline_rank} {what.format(most)}; the bound of "
                        f"{families[0].title} is {bound} (m = {m}){held_by(holder)}"
                    )
                    yield Finding(
                        kind=f"{kind} beyond the bound", message=text, step=expected.step, rank=one.rank
                    )


@requirement(
    "LIF-8",
    title="Closing",
    level=MUST,
    about=(Focus.PLAIN,),
    observe=_ROUNDS,
    any_schedule=True,
    promise=contract("Pipeline.close: may be called twice, and leaves the group to its caller"),
)
def closing(evidence: Evidence) -> Iterator[Finding]:
    """A pipeline can be closed twice, and the process group that it was given can still be used afterwards,
    for other work and for other pipelines.

    The group belongs to the caller; error handlers close what is closed already.
    """
    for one in evidence.shown:
        lived_on = lived_on_by(one)
        evidence.compared()
        if lived_on.closing_error is not None:
            text = f"the second close() on rank {one.rank} raised {lived_on.closing_error}"
            yield Finding(kind="second close raises", message=text, rank=one.rank)
        if not lived_on.group_works:
            text = (
                f"after close() the pipeline's group is gone, or a sum over it is wrong, on rank {one.rank}"
            )
            yield Finding(kind="group unusable", message=text, rank=one.rank)
