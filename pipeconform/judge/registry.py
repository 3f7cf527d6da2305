"""Which judgement answers which requirement, about which cases.

The partition keeps accusations precise: a case about keyword arguments is judged by the requirement
about keyword arguments, and not by every requirement that its failure would break as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pipeconform.adapter import Capabilities, Feature, ScheduleClaim
from pipeconform.case.case import Case
from pipeconform.case.focus import MISTAKEN
from pipeconform.case.strategies import Focus, is_claimed
from pipeconform.case.traits import traits
from pipeconform.judge import aftermath as aftermaths
from pipeconform.judge import (
    communication,
    data_parallel,
    forward,
    lifecycle,
    misplanned,
    norms,
    reductions,
    residue,
    schedules,
    split_backward,
    tables,
    tracing,
    training,
)
from pipeconform.judge.aftermath import Aftermath
from pipeconform.judge.evidence import Evidence, Finding, Judge
from pipeconform.judge.outcome import Outcome
from pipeconform.observe.observation import Watched

__all__ = ["JUDGEMENTS", "Judgement"]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """How one requirement is judged.

    A case is judged when one of its traits is in `about` and all of them are in `among`.
    """

    judge: Judge
    about: frozenset[Focus]
    among: frozenset[Focus]
    needs: frozenset[Feature] = frozenset()
    trains: bool = False
    """Whether only training steps are judged."""
    splits: bool = False
    """Whether the requirement is about schedules that split the backward pass."""
    tolerates: frozenset[Focus] = frozenset()
    """Subjects whose cases an implementation may also refuse, with an error on every rank."""
    refuses: frozenset[Focus] = frozenset()
    """Subjects whose cases an implementation must refuse, with an error on every rank."""
    echoes: bool = False
    """Whether the error of one rank is refusal enough when the others only lose their connection to it."""
    repeats: bool = False
    """Whether the case is executed several times and the executions compared."""
    evaluates: bool = False
    """Whether only evaluation steps are judged."""
    draws: frozenset[Focus] = frozenset()
    """The foci to draw cases from, if they are other than `about`."""
    observe: frozenset[Watched] = frozenset()
    """What the ranks must record besides the values."""
    aftermath: Callable[[Aftermath], Iterator[Outcome]] | None = None
    """How cases are judged in which something is done wrong on purpose; `judge` is then not asked."""
    named: bool = False
    """Whether the schedule's claim must name the family that it belongs to."""
    any_schedule: bool = False
    """Whether the subject has nothing to do with the schedule: a small run judges it under two of them."""
    costly: bool = False
    """It is about every schedule, but the smallest run judges it under one of them only."""
    refusal: Callable[[Case, Sequence[str]], Iterator[Finding]] | None = None
    """What is wrong with a refusal that is tolerated, by what the errors of the ranks say."""

    def applies(self, case: Case) -> bool:
        """Whether the requirement says something about `case`."""
        found = traits(case)
        return (
            bool(found & self.about)
            and found <= self.among
            and (not self.trains or bool(case.trains))
            and (not self.evaluates or len(case.trains) < len(case.runs))
        )

    def foci(self, claim: ScheduleClaim, capabilities: Capabilities) -> tuple[Focus, ...]:
        """The foci to draw cases from; empty when nothing the requirement needs is claimed."""
        if not self.needs <= capabilities.features or (self.trains and not claim.trains):
            return ()
        if self.splits and not claim.split_backward:
            return ()
        if self.evaluates and not claim.evaluates:
            return ()
        if self.named and not schedules.is_named(claim):
            return ()
        wanted = self.draws or self.about
        return tuple(f for f in Focus if f in wanted and is_claimed(f, claim, capabilities))


def _about(*foci: Focus, judge: Judge, among: frozenset[Focus] = frozenset(), **others: object) -> Judgement:
    about = frozenset(foci)
    return Judgement(judge=judge, about=about, among=about | among, **others)  # type: ignore[arg-type]


def _unasked(evidence: Evidence) -> Iterator[Finding]:
    raise AssertionError(f"case {evidence.case.digest} has no mistake: its aftermath is nothing to judge")


def _mistaken(
    *foci: Focus,
    aftermath: Callable[[Aftermath], Iterator[Outcome]] = aftermaths.answers_are_right,
    observe: frozenset[Watched] = frozenset(),
) -> Judgement:
    return Judgement(
        judge=_unasked,
        about=frozenset(foci),
        among=frozenset(foci),
        aftermath=aftermath,
        trains=True,
        any_schedule=True,
        observe=observe,
    )


def _recorded(judge: Judge) -> Judgement:
    """About what is sent and received; all of them draw the same cases, which thus run once."""
    return _about(
        Focus.PLAIN,
        judge=judge,
        draws=frozenset({Focus.TRAFFIC}),
        observe=frozenset({"traffic"}),
        costly=True,
    )


def _with_gradients(judge: Judge) -> Judge:
    """What a case is about must be right in both directions."""

    def both(evidence: Evidence) -> Iterator[Finding]:
        yield from judge(evidence)
        yield from training.gradients_are_right(evidence)

    return both


def _whole_batch(evidence: Evidence) -> Iterator[Finding]:
    """Order and length; every value too, where uneven batches are claimed and so the way they are split."""
    yield from forward.batch_order_is_kept(evidence)
    if Focus.UNEVEN in traits(evidence.case) and Feature.UNEVEN_BATCHES in evidence.capabilities.features:
        yield from forward.outputs_are_right(evidence)
        yield from training.losses_and_gradients_are_right(evidence)


_CROSSING = frozenset({Focus.BOUNDARY, Focus.NO_GRAD, Focus.DTYPE})

_TIMELINE: frozenset[Watched] = frozenset({"timeline"})
_LONELINESS: frozenset[Watched] = frozenset({"loneliness"})
_ROUNDS: frozenset[Watched] = frozenset({"memory", "rounds", "timeline"})

JUDGEMENTS: dict[str, Judgement] = {
    "FWD-1": _about(Focus.PLAIN, judge=forward.outputs_are_right),
    "FWD-2": _about(
        Focus.PLAIN,
        Focus.UNEVEN,
        judge=_whole_batch,
        needs=frozenset({Feature.OUTPUTS}),
        tolerates=frozenset({Focus.UNEVEN}),
    ),
    "FWD-3": _about(
        Focus.PLAIN, judge=forward.outputs_only_where_declared, needs=frozenset({Feature.OUTPUTS})
    ),
    "FWD-4": _about(Focus.BOUNDARY, judge=_with_gradients(forward.containers_are_kept)),
    "FWD-5": _about(Focus.NO_GRAD, judge=_with_gradients(forward.tensors_without_gradient_arrive)),
    "FWD-6": _about(Focus.DTYPE, judge=_with_gradients(forward.boundaries_arrive), among=_CROSSING),
    "FWD-7": _about(
        Focus.VIEWS,
        Focus.LAYOUT,
        judge=_with_gradients(forward.boundaries_arrive),
        tolerates=frozenset({Focus.VIEWS, Focus.LAYOUT}),
        echoes=True,
    ),
    "FWD-8": _about(Focus.SHAPES, judge=_with_gradients(forward.boundaries_arrive)),
    "FWD-9": _about(Focus.KWARGS, judge=_with_gradients(forward.outputs_are_right)),
    "FWD-10": _about(Focus.SKIP, judge=_with_gradients(forward.boundaries_arrive)),
    "FWD-11": _about(
        Focus.STRUCTURED,
        judge=_with_gradients(forward.containers_are_kept),
        needs=frozenset({Feature.OUTPUTS}),
    ),
    "FWD-12": _about(Focus.IGNORED, judge=_with_gradients(forward.boundaries_arrive)),
    "FWD-13": _about(Focus.SHARED, judge=training.values_and_gradients_are_right),
    "FWD-14": _about(Focus.INPLACE, judge=training.values_and_gradients_are_right),
    "FWD-15": _about(Focus.OBJECTS, judge=_with_gradients(forward.outputs_are_right), any_schedule=True),
    "FWD-16": _about(Focus.BATCH_DIM, judge=_with_gradients(forward.outputs_are_right)),
    "FWD-22": _about(Focus.RULES, judge=_with_gradients(forward.outputs_are_right), any_schedule=True),
    "FWD-17": _about(Focus.HOOKS, judge=forward.hooks_run_once),
    "FWD-18": _about(Focus.AUTOCAST, judge=_with_gradients(forward.containers_are_kept), any_schedule=True),
    "FWD-20": _about(
        Focus.COMPILED,
        judge=training.losses_and_gradients_are_right,
        tolerates=frozenset({Focus.COMPILED}),
        echoes=True,  # a schedule looks at the stages of its own rank
        refusal=forward.compilation_is_named,
        costly=True,
    ),
    "FWD-21": _about(
        Focus.FLOAT8,
        judge=_with_gradients(forward.boundaries_arrive),
        tolerates=frozenset({Focus.FLOAT8}),
        echoes=True,
        any_schedule=True,
    ),
    "TRN-1": _about(Focus.PLAIN, judge=training.gradients_are_right, trains=True),
    "TRN-2": _about(Focus.PLAIN, Focus.SUM, judge=training.losses_are_right, trains=True),
    "TRN-3": _about(Focus.PLAIN, Focus.SUM, judge=training.scale_is_right, trains=True),
    "TRN-4": _about(Focus.ACCUMULATE, judge=training.gradients_are_right, trains=True),
    "TRN-5": _about(Focus.FROZEN, judge=training.gradients_are_right, trains=True),
    "TRN-6": _about(Focus.UNUSED, judge=training.gradients_are_right, trains=True),
    "TRN-7": _about(
        Focus.INPUTS,
        judge=training.input_gradients_are_right,
        trains=True,
        among=frozenset({Focus.KWARGS}),
    ),
    "TRN-8": _about(Focus.TIED, Focus.TIED_STAGES, judge=training.values_and_gradients_are_right),
    "TRN-9": _about(Focus.BUFFERS, judge=training.buffers_are_right, needs=frozenset({Feature.STATE})),
    "TRN-10": _about(Focus.DROPOUT, judge=training.dropout_is_replayed, trains=True),
    "TRN-11": _about(
        Focus.CHECKPOINT,
        Focus.REENTRANT,
        judge=training.losses_and_gradients_are_right,
        trains=True,
        tolerates=frozenset({Focus.REENTRANT}),
        echoes=True,
    ),
    "TRN-12": _about(Focus.TARGETS, judge=training.losses_and_gradients_are_right, trains=True),
    "TRN-13": _about(Focus.AUXILIARY, judge=training.losses_and_gradients_are_right, trains=True),
    "TRN-14": _about(
        Focus.OPTIMIZER, judge=training.updates_are_right, trains=True, needs=frozenset({Feature.STATE})
    ),
    "TRN-15": _about(Focus.GRADIENT_LAYOUT, Focus.IGNORED, judge=training.gradients_are_right, trains=True),
    "TRN-16": _about(
        Focus.DTYPE, judge=training.losses_and_gradients_are_right, trains=True, among=_CROSSING
    ),
    "TRN-17": _about(
        Focus.PLAIN,
        Focus.FROZEN,
        Focus.TIED,
        Focus.UNUSED,
        judge=norms.gradient_norm_is_right,
        trains=True,
        needs=frozenset({Feature.GRADIENT_NORM}),
    ),
    "TRN-18": _about(Focus.STATEFUL, judge=training.values_and_gradients_are_right, trains=True),
    "SPL-1": _about(
        Focus.PLAIN,
        Focus.VIEWS,
        Focus.SHARED,
        Focus.TIED,
        Focus.GRAPHS,
        Focus.FROZEN,
        Focus.NO_GRAD,
        judge=training.gradients_are_right,
        trains=True,
        splits=True,
    ),
    "SPL-2": _about(
        Focus.PLAIN,
        Focus.BY_HAND,
        judge=split_backward.weights_run_once,
        trains=True,
        splits=True,
        observe=_TIMELINE | {"memory"},
    ),
    "SPL-3": _about(Focus.DEFERRED, judge=split_backward.deferred_functions_run_once, trains=True),
    "SPL-4": _about(Focus.DISORDER, judge=split_backward.mistakes_are_refused, trains=True, splits=True),
    "SPL-5": _about(
        Focus.PLAIN,
        Focus.BY_HAND,
        judge=split_backward.nothing_kept_after_weights,
        trains=True,
        splits=True,
        observe=_TIMELINE | {"memory"},
    ),
    "SCH-1": _about(Focus.PLAIN, judge=schedules.everything_once, observe=_TIMELINE),
    "SCH-2": _about(Focus.PLAIN, judge=schedules.order_is_the_named_one, observe=_TIMELINE, named=True),
    "SCH-3": _about(
        Focus.PLAIN, judge=schedules.in_flight_is_bounded, trains=True, observe=_TIMELINE, named=True
    ),
    "SCH-4": _about(
        Focus.PLAIN,
        judge=tables.bubble_is_bounded,
        trains=True,
        observe=_TIMELINE,
        named=True,
        needs=frozenset({Feature.DECLARED_TABLE}),
    ),
    "SCH-5": _about(
        Focus.PLAIN,
        judge=tables.nothing_waits_in_a_circle,
        trains=True,
        observe=_TIMELINE,
        needs=frozenset({Feature.DECLARED_TABLE}),
    ),
    "SCH-6": _about(
        Focus.PLAIN,
        judge=schedules.edges_are_right,
        draws=frozenset({Focus.EDGE}),
        observe=_TIMELINE | {"loneliness"},
    ),
    "SCH-7": _about(
        Focus.PLAIN,
        Focus.MISPLACED,
        judge=schedules.placement_is_kept,
        observe=_TIMELINE,
        refuses=frozenset({Focus.MISPLACED}),
    ),
    "SCH-8": _about(
        Focus.PLAIN,
        judge=schedules.declared_is_executed,
        trains=True,
        observe=_TIMELINE,
        needs=frozenset({Feature.DECLARED_TABLE}),
    ),
    "SCH-9": _about(
        Focus.PLAIN,
        Focus.EVAL,
        judge=schedules.evaluation_is_right,
        evaluates=True,
        observe=_TIMELINE,
        needs=frozenset({Feature.EVAL}),
    ),
    "DPC-1": _about(
        Focus.REPLICAS, Focus.SHARDED, judge=data_parallel.gradients_are_the_mean, trains=True, costly=True
    ),
    "DPC-2": _about(
        Focus.REPLICAS,
        Focus.SHARDED,
        judge=reductions.synchronised_once,
        trains=True,
        costly=True,
        observe=_TIMELINE | {"reductions"},
    ),
    "DPC-3": _about(Focus.REPLICA_CONTENTS, judge=data_parallel.contents_are_right, trains=True, costly=True),
    "DPC-4": _about(
        Focus.REPLICA_OPTIONS, judge=data_parallel.options_change_nothing, trains=True, costly=True
    ),
    "DPC-5": _about(Focus.REPLICA_TIES, judge=data_parallel.ties_stay_equal, trains=True, costly=True),
    "DPC-6": _about(
        Focus.REPLICA_DELAYS, judge=data_parallel.timing_changes_nothing, trains=True, costly=True
    ),
    "DPC-8": _about(
        Focus.SHARDED, judge=data_parallel.shards_are_the_references, trains=True, any_schedule=True
    ),
    "TRC-1": _about(Focus.WHOLE, judge=tracing.stages_equal_the_model, any_schedule=True),
    "TRC-2": _about(Focus.WHOLE, Focus.WHOLE_CONTENTS, judge=tracing.keys_are_the_models, any_schedule=True),
    "TRC-3": _about(Focus.WHOLE_CONTENTS, judge=tracing.stages_equal_the_model, any_schedule=True),
    "TRC-4": _about(
        Focus.WHOLE_WRONG,
        judge=tracing.right_or_refused,
        tolerates=frozenset({Focus.WHOLE_WRONG}),
        refusal=tracing.refusal_is_clear,
        any_schedule=True,
    ),
    "TRC-5": _about(
        Focus.WHOLE_SHAPES,
        judge=tracing.shapes_are_known,
        tolerates=frozenset({Focus.WHOLE_SHAPES}),
        any_schedule=True,
    ),
    "ERR-1": _mistaken(Focus.WRONG_SHAPE),
    "ERR-2": _mistaken(Focus.WRONG_DTYPE),
    "ERR-3": _mistaken(Focus.CHANGED),
    "ERR-4": _mistaken(Focus.CHANGED_ONCE),
    "ERR-5": _mistaken(Focus.WRONG_VALUES),
    "ERR-6": _mistaken(Focus.WRONG_GRADIENT),
    "ERR-7": _mistaken(Focus.WRONG_BATCH),
    "ERR-8": _mistaken(Focus.NEIGHBOURS, aftermath=misplanned.plans_are_refused, observe=_LONELINESS),
    "ERR-9": _mistaken(Focus.MISPLANNED, aftermath=misplanned.plans_are_refused, observe=_LONELINESS),
    "ERR-10": _mistaken(Focus.RAISES, Focus.HOOK_RAISES),
    "ERR-11": _mistaken(
        Focus.RAISES,
        Focus.WRONG_SHAPE,
        Focus.MISPLANNED,
        aftermath=aftermaths.processes_recover,
        observe=frozenset({"recovery"}),
    ),
    "ERR-12": _about(
        Focus.OUT_OF_ORDER, judge=split_backward.mistakes_are_refused, trains=True, any_schedule=True
    ),
    "ERR-13": _mistaken(*MISTAKEN, aftermath=aftermaths.nobody_dies),
    "ERR-14": _mistaken(Focus.RAISES, aftermath=aftermaths.nobody_waits, observe=frozenset({"loneliness"})),
    "ERR-15": _mistaken(
        Focus.WRONG_SHAPE,
        Focus.WRONG_DTYPE,
        Focus.WRONG_BATCH,
        aftermath=aftermaths.pipelines_recover,
        observe=frozenset({"resumption"}),
    ),
    "COM-1": _recorded(communication.matched),
    "COM-2": _recorded(communication.only_the_given_group),
    "COM-3": _recorded(communication.gets_through),
    "COM-4": _recorded(communication.memory_in_flight_is_left_alone),
    "COM-5": _recorded(communication.no_more_than_needed),
    "COM-6": _about(Focus.DELAYED, judge=communication.timing_changes_nothing, costly=True),
    "LIF-1": _about(
        Focus.EVAL, Focus.VARYING, judge=lifecycle.any_order_is_right, among=frozenset({Focus.DROPOUT})
    ),
    "LIF-2": _about(Focus.GUARDED, judge=lifecycle.evaluation_differentiates_nothing),
    "LIF-3": _about(Focus.PLAIN, judge=residue.nothing_stays_behind, observe=_ROUNDS, any_schedule=True),
    "LIF-4": _about(
        Focus.LOAD,
        judge=lifecycle.state_is_the_whole_models,
        needs=frozenset({Feature.STATE}),
        any_schedule=True,
    ),
    "LIF-5": _about(Focus.PLAIN, Focus.DROPOUT, judge=lifecycle.nothing_by_itself, repeats=True),
    "LIF-6": _about(
        Focus.PLAIN, Focus.BUFFERS, Focus.DROPOUT, Focus.FROZEN, judge=lifecycle.building_changes_nothing
    ),
    "LIF-7": _about(
        Focus.PLAIN,
        judge=residue.activations_are_bounded,
        trains=True,
        observe=_TIMELINE | {"memory"},
        named=True,
    ),
    "LIF-8": _about(Focus.PLAIN, judge=residue.closing_is_clean, observe=_ROUNDS, any_schedule=True),
}
"""By requirement id."""
