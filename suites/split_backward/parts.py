"""Schedules that compute input gradients first and weight gradients later."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case.case import Train
from pipeconform.case.draw.traits import traits
from pipeconform.case.focus import Focus
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.judgement import TIMELINE, requirement
from pipeconform.judge.schedules import counted_once, possible_order
from pipeconform.judge.split_backward import held_by, still_alive
from pipeconform.judge.timeline import executed
from pipeconform.judge.training import gradients_are_right
from pipeconform.spec.catalogue import MUST

from ..promises import paper


@requirement(
    "SPL-1",
    title="Split backward",
    level=MUST,
    about=(Focus.PLAIN, Focus.VIEWS, Focus.SHARED, Focus.TIED, Focus.GRAPHS, Focus.FROZEN, Focus.NO_GRAD),
    trains=True,
    splits=True,
    promise=paper("Zero Bubble Pipeline Parallelism (arXiv:2401.10241)"),
)
def split_backward_equals_the_full_one(evidence: Evidence) -> Iterator[Finding]:
    """Computing input gradients first and weight gradients later gives the same gradients as the full
    backward pass, whatever the stage's graph looks like: stage outputs that are views, submodules called
    twice, parameters that are tied or used together, nodes with several outputs, frozen parts and stages, and
    boundary tensors that need no gradient or do not depend on the stage's inputs.

    Zero-bubble schedules walk the autograd graph themselves; whatever they miss is a silently wrong gradient.
    """
    yield from gradients_are_right(evidence)


@requirement(
    "SPL-2",
    title="Each weight part once",
    level=MUST,
    about=(Focus.PLAIN, Focus.BY_HAND),
    trains=True,
    splits=True,
    observe=TIMELINE | {"memory"},
    promise=(
        paper("Zero Bubble Pipeline Parallelism (arXiv:2401.10241), section 2"),
        paper("DualPipe (arXiv:2412.19437)"),
    ),
)
def each_weight_part_runs_once(evidence: Evidence) -> Iterator[Finding]:
    """Each weight part runs exactly once, after its input part, and at the end of the step nothing that a
    forward saved for a backward is left. This also holds for steps in which a stage runs the backward of some
    microbatches whole and of others in parts.

    A weight part left over is a missing gradient and a graph that is never freed; schedules such as DualPipeV
    mix whole and split backwards on every stage.
    """
    if Focus.BY_HAND in traits(evidence.case):
        yield from gradients_are_right(evidence)
    for expected in evidence.runs(Train):
        ranks = executed(evidence, expected.step)
        for finding in counted_once(evidence, expected.step, ranks):
            if "W" in finding.kind.split():
                yield finding
        for one in ranks:
            evidence.compared(len(one.calls))
            for finding in possible_order(one, step=expected.step):
                if finding.kind == "W before I":
                    yield finding
            for held in held_by(evidence, one, expected.step):
                if held.before < 0:
                    yield still_alive(
                        one, held, expected.step, kind="left over", when="when the step has ended"
                    )


@requirement(
    "SPL-5",
    title="Memory between input and weight part",
    level=MUST,
    about=(Focus.PLAIN, Focus.BY_HAND),
    trains=True,
    splits=True,
    observe=TIMELINE | {"memory"},
    promise=(
        paper("Zero Bubble Pipeline Parallelism (arXiv:2401.10241), section 2"),
        paper("Controllable Memory (arXiv:2405.15362)"),
    ),
)
def memory_is_released_after_the_weight_part(evidence: Evidence) -> Iterator[Finding]:
    """What a stage saved for the backward of a microbatch is released once its weight part has run: nothing
    of it is alive when the rank begins its next forward, or ends the step.

    Between I and W a microbatch holds its activations; an engine that still holds them after W needs more
    memory with every microbatch, and breaks the schedule's bound.
    """
    for expected in evidence.runs(Train):
        for one in executed(evidence, expected.step):
            seen: set[int] = set()
            evidence.compared(len(one.calls))
            for held in held_by(evidence, one, expected.step):
                if held.call in seen:
                    continue
                seen.add(held.call)
                when = "when the step has ended"
                if held.before >= 0:
                    later = one.calls.get(held.before)
                    when = f"when {later[0]}F{later[1]} begins" if later else "when another forward begins"
                yield still_alive(one, held, expected.step, kind="kept after the weight part", when=when)
