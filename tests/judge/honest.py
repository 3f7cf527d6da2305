"""Evidence of ranks that do everything right, made from the oracle's own values, and single changes of it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping

import msgspec
import torch

from pipeconform.adapter import Capabilities, Placement, ScheduleClaim, placement_of
from pipeconform.case import blocks
from pipeconform.case.build import merges
from pipeconform.case.build.given_table import given_table
from pipeconform.case.case import (
    ByHand,
    Case,
    Clip,
    Eval,
    Freeze,
    Kwarg,
    Load,
    LossSpec,
    Model,
    Optimize,
    Passage,
    PassageKind,
    Restart,
    Scaling,
    Sgd,
    Stage,
    Step,
    Train,
    World,
    Zero,
)
from pipeconform.case.orders import Order
from pipeconform.judge.evidence import Evidence, Finding, shown_step
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.observe.array import Array
from pipeconform.observe.observation import (
    Answered,
    Census,
    Event,
    Forward,
    Kept,
    LivedOn,
    Named,
    Observation,
    Reference,
    StepExpected,
    StepShown,
    Structure,
)
from pipeconform.oracle.full_model import Bounds, Masks, reference
from pipeconform.schedule import Action, Kind, generate, to_csv
from tests.case.examples import EVERYTHING, small_case, with_model

M = 3
"""Microbatches of a step, two samples each."""

RUN = {"batch_size": 2 * M, "num_microbatches": M}
TRAIN, EVAL = Train(**RUN), Eval(**RUN)
_UPDATES = (TRAIN, Optimize(), Zero()) * 2

TWO_DIRECTIONS = dataclasses.replace(
    EVERYTHING, schedules=(ScheduleClaim(name="GPipe", placement=Placement.MIRROR),)
)
"""Both ranks own both stages."""

HALVES: Mapping[int, tuple[int, ...]] = {0: (0, 2), 1: (1,)}
"""The microbatches that each rank finishes in a two-direction pipeline."""


_COUNTS = Census(tensors=40, threads=6, descriptors=20, groups=2)
FLAT = LivedOn(steps=(_COUNTS, _COUNTS), rounds=(_COUNTS, _COUNTS), closing_error=None, group_works=True)
"""What more steps and pipelines leave behind: nothing."""


def honest(
    case: Case,
    *,
    masks: Masks | None = None,
    capabilities: Capabilities = EVERYTHING,
    shares: Mapping[int, tuple[int, ...]] | None = None,
) -> Evidence:
    """The evidence of a run without a fault; `shares` gives the microbatches that each rank finishes."""

    @functools.cache
    def expected(bounds: Bounds) -> Reference:
        return reference(
            case, scale=capabilities.scale, loss_over=capabilities.loss_over, masks=masks, bounds=bounds
        )

    right = expected("none")
    claim = capabilities.schedule(case.schedule)
    assert claim is not None
    placement = placement_of(claim.placement, num_ranks=case.num_ranks, num_stages=case.num_stages)
    shown = []
    for rank in range(case.world.size):
        number = case.world.pipeline_of(rank)
        if number is None:
            steps = tuple(StepShown(step=index) for index in range(len(case.program)))
            shown.append(Observation(rank=rank, pipeline_rank=None, lived_on=FLAT, steps=steps))
            continue
        position = case.world.pipelines[number].index(rank)
        given = () if case.world.order is None else given_table(case)[position]
        made = _Rank(case, position, placement, masks or {}, shares, given)
        steps = tuple(made.step(step) for step in (right.steps, *right.others)[number])
        shown.append(
            Observation(rank=rank, pipeline_rank=position, table=_table(case), lived_on=FLAT, steps=steps)
        )
    return Evidence(
        case=case, capabilities=capabilities, shown=tuple(shown), expected=right, bounded=expected
    )


class _Rank:
    """One rank's steps: all forwards in turn, then all backwards, unless its order is given."""

    def __init__(
        self,
        case: Case,
        position: int,
        placement: tuple[frozenset[int], ...],
        masks: Masks,
        shares: Mapping[int, tuple[int, ...]] | None,
        given: tuple[Action, ...],
    ) -> None:
        self.case, self.position, self.masks, self.shares = case, position, masks, shares
        self.given = given
        self.owned = [s for s, owners in enumerate(placement) if position in owners]
        self.calls = 0

    def _output(self, parts: list[Structure]) -> Structure:
        dim, rules = self.case.model.batch_dim, merges.rules_of(self.case)
        if not rules:
            return merged(parts, dim)
        columns = zip(*([leaf.tensor() for leaf in part.leaves()] for part in parts), strict=True)
        pairs = zip(rules, columns, strict=True)
        return Structure.of(tuple(merges.merged(rule, column, batch_dim=dim) for rule, column in pairs))

    def step(self, right: StepExpected) -> StepShown:
        m, kind = len(right.outputs), self.case.program[right.step]
        state = {
            name: {s: getattr(right, name)[s] for s in self.owned}
            for name in ("gradients", "buffers", "parameters")
        }
        if self.case.model.is_exact:
            state["gradients"] = {s: _summed(right, s) for s in self.owned}
        if not m:
            return StepShown(step=right.step, events=(), loss_scale=right.loss_scale, **state)
        held = tuple(range(m)) if self.shares is None else self.shares[self.position]
        last, trains = self.case.num_stages - 1 in self.owned, isinstance(kind, Train)
        forwards, events = self._computations(right, trains=trains)
        return StepShown(
            step=right.step,
            output=self._output([right.outputs[k] for k in held]) if last else None,
            microbatches=None if self.shares is None else held,
            losses=tuple(right.losses[k] for k in held) if last else None,
            input_gradients=right.input_gradients if 0 in self.owned and trains else None,
            kwarg_gradients={s: own for s, own in right.kwarg_gradients.items() if s in self.owned},
            forwards=forwards,
            events=events,
            gradient_norm=_norm_of(right) if trains else None,
            loss_scale=right.loss_scale,
            held=(),
            kept=Kept(at_once=m, inputs=m, outputs=()),
            answers=self._answers(kind),
            begun=dict.fromkeys(self.owned, m + 1) if self.case.world.recompute and trains else {},
            hook_counts={s: counts for s, counts in right.hook_counts.items() if s in self.owned},
            **state,
        )

    def _answers(self, run: Step) -> tuple[Answered, ...]:
        hand = run.by_hand if isinstance(run, Train) else None
        if hand is None or not hand.mistake or hand.stage not in self.owned:
            return ()
        told = f"stage {hand.stage} was asked for the weight part of microbatch {hand.microbatch}"
        return (Answered(stage=hand.stage, microbatch=hand.microbatch, call=hand.mistake, error=told),)

    def _computations(
        self, right: StepExpected, *, trains: bool
    ) -> tuple[tuple[Forward, ...], tuple[Event, ...]]:
        forwards, events = [], []
        model = self.case.model
        flags = tuple(kind == "stream" for kind in model.carried)
        pairs = [(s, k) for s in self.owned for k in range(len(right.outputs)) if self._runs(s, k)]
        for s, k in pairs:
            onward = right.inputs[s + 1][k] if s + 1 < self.case.num_stages else ()
            parts = (("IW" if s else "W") if trains else "",)
            events.append(Event("F", s, self.calls + len(forwards), -1, 0.0, *parts))
            forwards.append(
                Forward(
                    stage=s,
                    grad_enabled=trains,
                    training=trains,
                    requires_grad=tuple(trains and s > 0 and flag for flag in (True, *flags)),
                    inputs=right.inputs[s][k],
                    output=_handed(model, onward) if onward else right.outputs[k],
                    masks=self.masks.get((right.step, s, k), ()),
                    call=self.calls + len(forwards),
                )
            )
        for task, (s, _) in enumerate(pairs if trains else ()):
            kinds = ("I", "W") if s else ("W",)
            events += [Event(kind, s, self.calls + task, task, 0.0) for kind in kinds]  # type: ignore[arg-type]
        self.calls += len(forwards)
        if self.given and trains:
            events = self._as_given(events, {one.call: pairs[n] for n, one in enumerate(forwards)})
        return tuple(forwards), tuple(events)

    def _as_given(self, events: list[Event], pairs: Mapping[int, tuple[int, int]]) -> list[Event]:
        due = {(one.kind, *pairs[one.call]): one for one in events}
        kinds = {Kind.F: "F", Kind.B: "IW", Kind.I: "I", Kind.W: "W"}
        return [
            due[kind, one.stage, one.microbatch]
            for one in self.given
            for kind in kinds[one.kind]
            if (kind, one.stage, one.microbatch) in due
        ]

    def _runs(self, s: int, k: int) -> bool:
        """Whether this rank runs stage s of microbatch k: down the ranks, or up where the first one ends it."""
        if self.shares is None:
            return True
        down = k in self.shares[self.case.num_ranks - 1]
        return self.position == (s if down else self.case.num_ranks - 1 - s)


def _norm_of(right: StepExpected) -> Array:
    gradients = [g.tensor() for named in right.gradients.values() for g in named.values() if g is not None]
    return Array.of(torch.stack([g.double().square().sum() for g in gradients]).sum().sqrt())


def _summed(right: StepExpected, stage: int) -> Named:
    """What the gradients of the case `sums` are after each step: half of 256 + 1, then half of 1 + 1 more."""
    value = (128.5, 129.5)[right.step]
    return {name: Array.of(torch.full((2,), value)) for name in right.gradients[stage]}


def _table(case: Case) -> str:
    return to_csv(generate("gpipe", num_ranks=case.num_ranks, num_microbatches=case.runs[0].num_microbatches))


def _handed(model: Model, values: tuple[Structure, ...]) -> Structure:
    if model.container == "tensor":
        return values[0]
    return Structure(kind=model.container, items=values)


def merged(parts: Iterable[Structure], dim: int = 0) -> Structure:
    """Several microbatches' outputs as one, containers kept."""
    parts = list(parts)
    first = parts[0]
    if first.array is not None:
        whole = torch.cat([part.array.tensor() for part in parts if part.array is not None], dim)
        return Structure.of(whole)
    columns = zip(*(part.items for part in parts), strict=True)
    return msgspec.structs.replace(first, items=tuple(merged(column, dim) for column in columns))


# ------------------------------------------------------------------------------------------ one change


def changed(made: Evidence, *, rank: int, step: int = 0, **fields: object) -> Evidence:
    """The same evidence with fields of one rank's step replaced."""
    one = made.shown[rank]
    steps = list(one.steps)
    steps[step] = msgspec.structs.replace(steps[step], **fields)
    other = msgspec.structs.replace(one, steps=tuple(steps))
    return dataclasses.replace(made, shown=(*made.shown[:rank], other, *made.shown[rank + 1 :]))


def expecting(made: Evidence, *, step: int = 0, **fields: object) -> Evidence:
    """The same evidence with other reference values, at any level of bounds."""
    steps = list(made.expected.steps)
    steps[step] = msgspec.structs.replace(steps[step], **fields)
    right = Reference(steps=tuple(steps))
    return dataclasses.replace(made, expected=right, bounded=lambda bounds: right)


def with_value(
    made: Evidence, what: str, stage: int, name: str, value: Array | None, *, rank: int, step: int = 0
) -> Evidence:
    """The same evidence with one gradient, buffer or parameter replaced."""
    all_values = dict(getattr(shown_step(made.shown[rank], step), what))
    all_values[stage] = {**all_values[stage], name: value}
    return changed(made, rank=rank, step=step, **{what: all_values})


def value_of(made: Evidence, what: str, stage: int, name: str, *, step: int = 0) -> torch.Tensor:
    """The right value of one gradient, buffer or parameter."""
    array = getattr(made.expected.steps[step], what)[stage][name]
    assert array is not None
    return array.tensor()


def found(requirement: str, made: Evidence) -> list[Finding]:
    """The findings of a requirement's judgement."""
    return list(JUDGEMENTS[requirement].judge(made))


def told(
    requirement: str, made: Evidence
) -> list[tuple[str, int | None, int | None, int | None, int | None]]:
    """Its findings' kind, step, rank, stage and microbatch."""
    return [(f.kind, f.step, f.rank, f.stage, f.microbatch) for f in found(requirement, made)]


# ----------------------------------------------------------------------------------------------- cases


def plain_case(*program: Step, **changes: object) -> Case:
    """A case with two linear stages, three microbatches of two samples and, by default, one training step."""
    return small_case(program=program or (TRAIN,), **changes)


def of_blocks(*first: blocks.AnyBlock, program: tuple[Step, ...] = (TRAIN,), **model: object) -> Case:
    """A linear stage preceded by a stage of these blocks."""
    stages = (Stage(blocks=first), Stage(blocks=(blocks.Linear(),)))
    return with_model(small_case(program=program), stages=stages, **model)


_LINEAR = blocks.Linear()


def _passing(*kinds: PassageKind, last: int = 1, users: tuple[int, ...] = (1,)) -> Case:
    """Three linear stages; these passages leave the first one."""
    made = tuple(Passage(kind=kind, source=0, last=last, users=users) for kind in kinds)
    model = Model(width=3, stages=(Stage(blocks=(_LINEAR,)),) * 3, passages=made, container="tuple")
    return plain_case(model=model, world=World(size=3, pipeline_ranks=(0, 1, 2)))


def _mastered(optimizer: Sgd, *program: Step, **model: object) -> Case:
    """A case whose optimizer only a model of 16 bits can have."""
    case = with_model(plain_case(*program, optimizer=Sgd(lr=optimizer.lr)), **model)
    return msgspec.structs.replace(case, optimizer=optimizer)


_PAIR = Train(batch_size=2, num_microbatches=2)
_OUT_OF_SOURCE = msgspec.structs.replace(TRAIN, from_source=True)
_OWN_SOURCE = msgspec.structs.replace(EVAL, from_source=True)

CASES: Mapping[str, Case] = {
    "plain": plain_case(TRAIN, Zero(), TRAIN),
    "plain evaluation": plain_case(EVAL, EVAL),
    "among bystanders": plain_case(world=World(size=4, pipeline_ranks=(1, 3))),
    "given order": plain_case(world=World(size=2, pipeline_ranks=(0, 1), order=Order(seed=4))),
    "any order": plain_case(world=World(size=2, pipeline_ranks=(0, 1), order=Order(seed=1, in_turn=False))),
    "second schedule": plain_case(
        TRAIN, EVAL, Zero(), TRAIN, world=World(size=2, pipeline_ranks=(0, 1), second_schedule=True)
    ),
    "written": plain_case(
        world=World(size=2, pipeline_ranks=(0, 1), order=Order(seed=4), rewritten=True),
    ),
    "late receives": plain_case(world=World(size=2, pipeline_ranks=(0, 1), late_receives=True)),
    "recomputed": plain_case(world=World(size=2, pipeline_ranks=(0, 1), recompute=True)),
    "declared": plain_case(world=World(size=2, pipeline_ranks=(0, 1), declared="examples")),
    "uneven": plain_case(Train(batch_size=8, num_microbatches=3)),
    "second dimension": with_model(
        plain_case(Train(batch_size=5, num_microbatches=3)), sequence=2, batch_dim=1
    ),
    "sum": plain_case(loss=LossSpec(reduction="sum")),
    "accumulation": plain_case(TRAIN, TRAIN, Zero(set_to_none=False), TRAIN),
    "tuple": with_model(plain_case(), carried=("stream", "stream"), container="tuple"),
    "list": with_model(plain_case(), container="list"),
    "no gradient": with_model(
        plain_case(), carried=("scale", "stream", "positions", "mask"), container="tuple"
    ),
    "bfloat16": with_model(plain_case(), dtype="bfloat16"),
    "views": with_model(plain_case(), view_outputs=True),
    "layout": of_blocks(_LINEAR, blocks.Layout(), view_outputs=True),
    "kwargs": with_model(plain_case(), kwargs=(Kwarg(stage=0), Kwarg(stage=1, kind="number"))),
    "merged": with_model(plain_case(), merged=("turned", "whole", "total")),
    "1-tuple": with_model(plain_case(), output="tuple1"),
    "two outputs": with_model(plain_case(), output="tuple"),
    "dict": with_model(plain_case(), output="dict"),
    "shared": of_blocks(blocks.Shared()),
    "in place": of_blocks(blocks.Inplace()),
    "kept inputs": with_model(
        plain_case(),
        stages=(Stage(blocks=(blocks.Linear(),)), Stage(blocks=(blocks.Keeping(),))),
    ),
    "batch changed in place": msgspec.structs.replace(
        of_blocks(blocks.Rescaled()), loss=LossSpec(in_place=True)
    ),
    "activation": of_blocks(_LINEAR, blocks.Activation(kind="sigmoid"), view_outputs=True),
    "decoders": with_model(
        plain_case(),
        stages=(Stage(blocks=(blocks.Decoder(),)), Stage(blocks=(blocks.Decoder(kv_heads=2),))),
        sequence=3,
        kwargs=(Kwarg(stage=0, kind="positions"), Kwarg(stage=1, kind="mask")),
    ),
    "block masks": with_model(
        plain_case(),
        stages=(Stage(blocks=(blocks.Decoder(),)), Stage(blocks=(blocks.Decoder(),))),
        sequence=3,
        kwargs=(Kwarg(stage=0, kind="block_mask"), Kwarg(stage=1, kind="window")),
    ),
    "hooks": of_blocks(blocks.Hooked(), program=(TRAIN, Zero(), TRAIN)),
    "hooks on inputs": with_model(
        plain_case(TRAIN, Zero(), TRAIN),
        stages=(Stage(blocks=(_LINEAR,)), Stage(blocks=(blocks.InputHooked(), _LINEAR))),
    ),
    "a hook on inputs together": with_model(
        plain_case(TRAIN, Zero(), TRAIN),
        stages=(Stage(blocks=(_LINEAR,)), Stage(blocks=(blocks.InputHooked(together=True), _LINEAR))),
    ),
    "hooks on parameters": of_blocks(blocks.GradientHooked(), program=(TRAIN, Zero(), TRAIN)),
    "hooks on a module": of_blocks(
        _LINEAR, blocks.GradientHooked(on="module"), program=(TRAIN, Zero(), TRAIN)
    ),
    "pieces": of_blocks(blocks.Pieces()),
    "common": of_blocks(blocks.Common()),
    "offsets": of_blocks(blocks.Offsets()),
    "added weights": of_blocks(blocks.Combined()),
    "added rows": of_blocks(blocks.Combined(how="rows")),
    "joined": of_blocks(blocks.Joined()),
    "learned": _passing("learned"),
    "deferred": of_blocks(_LINEAR, blocks.Deferred()),
    "by hand": plain_case(msgspec.structs.replace(TRAIN, by_hand=ByHand(mixed=True))),
    "disorder": plain_case(
        msgspec.structs.replace(TRAIN, by_hand=ByHand(mistake="weight_twice", stage=1, microbatch=2))
    ),
    "out of order": plain_case(
        msgspec.structs.replace(
            TRAIN, by_hand=ByHand(whole=True, mistake="forward_twice", stage=1, microbatch=2)
        )
    ),
    "readout": with_model(plain_case(), readout=True),
    "freezing": plain_case(Freeze(stage=0), TRAIN, Zero(), Freeze(stage=0, frozen=False), TRAIN),
    "frozen": of_blocks(_LINEAR, blocks.Linear(frozen=True)),
    "unused": of_blocks(_LINEAR, blocks.Unused()),
    "branch": of_blocks(blocks.Branch()),
    "bypassed": of_blocks(blocks.Bypass()),
    "inputs": with_model(plain_case(), input_requires_grad=True),
    "inputs by name": with_model(plain_case(), input_requires_grad=True, kwargs=(Kwarg(stage=1),)),
    "buffers": of_blocks(_LINEAR, blocks.BatchNorm(), program=(TRAIN, Zero(), TRAIN)),
    "buffers that are replaced": of_blocks(
        blocks.Counting(expanded=True), program=(TRAIN, EVAL, Zero(), TRAIN)
    ),
    "buffers and evaluation": of_blocks(_LINEAR, blocks.BatchNorm(), program=(TRAIN, EVAL, Zero(), TRAIN)),
    "targets": plain_case(loss=LossSpec(scaled=True)),
    "optimizer": plain_case(
        TRAIN, Optimize(), Zero(), TRAIN, Optimize(), optimizer=Sgd(lr=0.125, momentum=0.5)
    ),
    "accumulation and evaluation": plain_case(TRAIN, EVAL, TRAIN),
    "accumulation and optimizer": plain_case(
        TRAIN, TRAIN, Optimize(), Zero(), TRAIN, optimizer=Sgd(lr=0.125, momentum=0.5)
    ),
    "evaluation and optimizer": plain_case(
        TRAIN, EVAL, Optimize(), Zero(), TRAIN, Optimize(), optimizer=Sgd(lr=0.125, momentum=0.5)
    ),
    "evaluation": plain_case(EVAL, TRAIN, EVAL, Zero(), TRAIN),
    "losses of evaluation": plain_case(EVAL, TRAIN, EVAL, loss=LossSpec(scaled=True)),
    "from a source": plain_case(_OUT_OF_SOURCE, _OWN_SOURCE, Zero(), _OUT_OF_SOURCE),
    "counted": with_model(
        plain_case(
            TRAIN,
            Zero(),
            TRAIN,
            loss=LossSpec(kind="cross_entropy", reduction="sum", ignore=True, counted=True),
            model=Model(
                width=3, stages=(Stage(blocks=(_LINEAR,)), Stage(blocks=(blocks.Head(),))), classes=3
            ),
        )
    ),
    "clipped": plain_case(
        TRAIN, Optimize(), Zero(), TRAIN, Optimize(), optimizer=Sgd(lr=0.125, clip=Clip(limit=0.0625))
    ),
    "masters": _mastered(
        Sgd(lr=2.0**-9, momentum=0.5, masters=True), *_UPDATES, Load(), *_UPDATES, dtype="bfloat16"
    ),
    "scaled": _mastered(
        Sgd(lr=0.03125, masters=True, scaling=Scaling(initial=2.0**14, backoff=2.0**-16)),
        *_UPDATES,
        dtype="float16",
        stages=(Stage(blocks=(_LINEAR, blocks.Overflowing())), Stage(blocks=(_LINEAR,))),
    ),
    "clipped copies": _mastered(
        Sgd(lr=0.125, masters=True, clip=Clip(limit=0.0625)), *_UPDATES, dtype="bfloat16"
    ),
    "clipped scaled": _mastered(
        Sgd(
            lr=0.03125,
            masters=True,
            clip=Clip(limit=8.0),
            scaling=Scaling(initial=2.0**14, backoff=2.0**-16),
        ),
        *_UPDATES,
        dtype="float16",
        stages=(Stage(blocks=(_LINEAR, blocks.Overflowing())), Stage(blocks=(_LINEAR,))),
    ),
    "sums": with_model(
        plain_case(_PAIR, _PAIR), width=2, dtype="bfloat16", stages=(Stage(blocks=(blocks.Gain(),)),) * 2
    ),
    "dropout": of_blocks(_LINEAR, blocks.Dropout(), program=(TRAIN, Zero(), TRAIN)),
    "shapes": _passing("scalar", "flat", "single", "deep", "empty"),
    "skip": _passing("stream", last=2, users=(1, 2)),
    "ignored": _passing("stream", users=()),
    "bypass": _passing("bypass"),
    "gradient layouts": _passing("summed", "turned"),
    "float8": _passing("float8"),
    "complex": _passing("complex"),
    "auxiliary loss": of_blocks(blocks.Auxiliary()),
    "checkpoint": of_blocks(_LINEAR, blocks.Checkpointed()),
    "reentrant checkpoint": of_blocks(_LINEAR, blocks.Checkpointed(reentrant=True)),
    "module state": of_blocks(blocks.Stateful()),
    "tied": of_blocks(blocks.Tied()),
    "autocast": with_model(plain_case(Train(**RUN, autocast=True)), dtype="float32"),
    "objects": with_model(plain_case(), kwargs=(Kwarg(stage=1, kind="objects"),)),
    "ruled": with_model(plain_case(), kwargs=(Kwarg(stage=0, kind="turned"), Kwarg(stage=1, kind="listed"))),
    "compiled": of_blocks(_LINEAR, blocks.Compiled()),
    "sequence first": with_model(plain_case(), sequence=2, batch_dim=1),
    "guarded": plain_case(Eval(**RUN, guard="inference_mode"), TRAIN),
    "restarted": with_model(
        plain_case(*_UPDATES, Restart(), *_UPDATES, optimizer=Sgd(lr=0.0625, momentum=0.5)),
        stages=(Stage(blocks=(_LINEAR, blocks.BatchNorm())), Stage(blocks=(_LINEAR,))),
    ),
    "restarted with a scale": _mastered(
        Sgd(lr=0.03125, masters=True, scaling=Scaling(initial=2.0**14, backoff=2.0**-16)),
        *_UPDATES,
        Restart(),
        *_UPDATES,
        dtype="float16",
        stages=(Stage(blocks=(_LINEAR, blocks.Overflowing())), Stage(blocks=(_LINEAR,))),
    ),
    "loaded": plain_case(Load(), TRAIN, Zero(), Load(), TRAIN),
    "dropout and evaluation": of_blocks(_LINEAR, blocks.Dropout(), program=(TRAIN, EVAL)),
}
"""Cases, at least one for every requirement."""


def masks_for(case: Case, *, alike: bool = False) -> Masks:
    """Dropout masks of a model whose first stage has one; the same for all microbatches if `alike`."""
    if not case.has(blocks.Dropout):
        return {}
    generator = torch.Generator().manual_seed(0)
    drawn: Masks = {}
    for index, step in enumerate(case.program):
        if not isinstance(step, Train):
            continue
        shape = (step.batch_size // step.num_microbatches, case.model.width)
        masks = [torch.rand(shape, generator=generator) < 0.5 for _ in range(step.num_microbatches)]
        for k, mask in enumerate(masks):
            drawn[index, 0, k] = (Array.of(masks[0] if alike else mask),)
    return drawn


@functools.cache
def honest_example(name: str) -> Evidence:
    """The honest evidence of one of `CASES`."""
    return honest(CASES[name], masks=masks_for(CASES[name]))


def judged(*chapters: str) -> list[tuple[str, str]]:
    """Every requirement of some chapters with every one of `CASES` that it judges."""
    return [
        (requirement, name)
        for requirement, judgement in JUDGEMENTS.items()
        for name, case in CASES.items()
        if requirement.startswith(chapters) and not judgement.refused and judgement.applies(case)
    ]
