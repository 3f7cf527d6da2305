"""Honest evidence of every kind, composed without processes, for the tests that spoil it.

Beside the cases of `tests.judge.honest`: engines that return other things, replicas of a pipeline, stages that a front
end made, and recorded traffic.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import torch
from msgspec import structs

from pipeconform.adapter import Capabilities, Feature
from pipeconform.case import blocks
from pipeconform.case.case import Case, Load, Model, Optimize, Sgd, Stage, Train, World, Zero
from pipeconform.case.draw.traits import traits
from pipeconform.case.replicas import Replicas
from pipeconform.judge.evidence import Evidence
from pipeconform.judge.judgement import Judgement
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.judge.schedules import is_named
from pipeconform.observe.array import Array
from pipeconform.observe.observation import Observation, Reduction, Sharding, StepExpected, StepShown
from pipeconform.observe.traffic.records import Cargo, Traffic
from pipeconform.ranks.operations import Layout, Moment, Operation
from tests.case.examples import EVERYTHING, with_model
from tests.judge.honest import (
    CASES,
    EVAL,
    HALVES,
    TRAIN,
    TWO_DIRECTIONS,
    honest,
    honest_example,
    of_blocks,
    plain_case,
)

__all__ = ["EVIDENCE", "evidence_of", "judging"]


def _with(made: Evidence, change: Callable[[Observation, StepShown], StepShown]) -> Evidence:
    """The same evidence with every step of every rank changed."""
    shown = tuple(
        structs.replace(one, steps=tuple(change(one, step) for step in one.steps)) for one in made.shown
    )
    return dataclasses.replace(made, shown=shown)


# ------------------------------------------------------------------------------- engines of other kinds


def _without(*features: Feature) -> Capabilities:
    return dataclasses.replace(EVERYTHING, features=EVERYTHING.features - set(features))


def one_loss(case: Case, **claims: object) -> Evidence:
    """An engine that returns one loss for the whole batch."""
    capabilities = dataclasses.replace(_without(Feature.MICROBATCH_LOSSES), **claims)
    made = honest(case, capabilities=capabilities)

    def change(_: Observation, step: StepShown) -> StepShown:
        if step.losses is None:
            return step
        losses = torch.stack([loss.tensor() for loss in step.losses])
        total = losses.sum()
        if case.loss.reduction == "mean":
            sizes = torch.tensor(made.sizes(step.step), dtype=losses.dtype)
            weights = sizes if capabilities.loss_over == "batch" else torch.ones_like(sizes)
            total = (losses * weights / weights.sum()).sum()
        return structs.replace(step, losses=None, loss=Array.of(total))

    return _with(made, change)


def nothing_returned() -> Evidence:
    """An engine that returns no outputs."""
    made = honest(CASES["plain"], capabilities=_without(Feature.OUTPUTS))
    return _with(made, lambda _, step: structs.replace(step, output=None))


def results_everywhere() -> Evidence:
    """An engine that gives outputs and losses to every rank."""
    capabilities = dataclasses.replace(EVERYTHING, outputs_on="all", loss_on="all")
    made = honest(CASES["plain"], capabilities=capabilities)
    last = made.shown[-1].steps

    def change(_: Observation, step: StepShown) -> StepShown:
        there = last[step.step]
        return structs.replace(step, output=there.output, losses=there.losses)

    return _with(made, change)


# ----------------------------------------------------------------------------------------------- replicas


def _replicated(*program: object, wrapper: str = "ddp", hook: bool = False, **model: object) -> Case:
    made = plain_case(*program, optimizer=Sgd(lr=0.125))  # type: ignore[arg-type]
    replicas = Replicas(others=((2, 3),), wrapper=wrapper, hook=hook)  # type: ignore[arg-type]
    case = structs.replace(made, world=World(size=4, pipeline_ranks=(0, 1), replicas=replicas))
    return with_model(case, **model) if model else case


_OPTIMIZED = (TRAIN, Optimize(), Zero(), TRAIN)


def replicated(case: Case) -> Evidence:
    """Two replicas of a pipeline whose ranks reduce their gradients when the last backward has begun."""
    made = honest(case)

    def change(one: Observation, step: StepShown) -> StepShown:
        if not isinstance(case.program[step.step], Train):
            return step
        sizes = {
            s: sum(array.size for array in own.values() if array is not None)
            for s, own in step.gradients.items()
        }
        begun = len(step.events or ())
        return structs.replace(
            step,
            gradient_norm=None,
            reductions=tuple(Reduction("allreduce_", s, size, begun) for s, size in sizes.items()),
            hooked=sizes if case.world.replicas is not None and case.world.replicas.hook else {},
        )

    return _with(made, change)


def sharded(*, mixed: bool = False) -> Evidence:
    """Two replicas that hold half of every parameter and gradient each, and may compute in bfloat16."""
    case = _replicated(TRAIN, Zero(), TRAIN, wrapper="fully_shard", **({"dtype": "float32"} if mixed else {}))
    assert case.world.replicas is not None
    replicas = structs.replace(case.world.replicas, mixed_precision=mixed)
    case = structs.replace(case, world=structs.replace(case.world, replicas=replicas))
    made = replicated(case)

    def cut(one: Observation, array: Array) -> tuple[Array, Sharding]:
        replica = case.world.replica_of(one.rank)
        assert replica is not None
        rows = array.shape[0]
        size = -(-rows // 2)
        part = array.tensor()[replica * size : (replica + 1) * size]
        held = Sharding(
            placements=("S(0)",),
            mesh=(2,),
            dim=0,
            index=replica,
            shape=array.shape,
            cuts=((0, 2, replica),),
        )
        return Array.of(part), held

    def change(one: Observation, step: StepShown) -> StepShown:
        values: dict[str, dict[int, dict[str, Array | None]]] = {"gradients": {}, "parameters": {}}
        shards: dict[str, dict[int, dict[str, Sharding]]] = {"gradients": {}, "parameters": {}}
        for what, held_values in values.items():
            for s, own in getattr(step, what).items():
                parts = {name: cut(one, array) for name, array in own.items() if array is not None}
                held_values[s] = {name: parts[name][0] if name in parts else None for name in own}
                shards[what][s] = {name: held for name, (_, held) in parts.items()}
        return structs.replace(
            step,
            gradients=values["gradients"],
            parameters=values["parameters"],
            gradient_shards=shards["gradients"],
            parameter_shards=shards["parameters"],
        )

    return _with(made, change)


# ------------------------------------------------------------------------------------------------ traffic


class _Talk:
    """One rank's operations, each waited for at once."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.cargo: dict[int, Cargo] = {}

    def add(self, kind: str, *, peer: int, process: int, tensor: torch.Tensor, step: int, name: str) -> int:
        number = len(self.operations)
        layout = Layout(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tuple(tensor.stride()))
        size = tensor.numel() * tensor.element_size()
        self.operations.append(
            Operation(number, kind, name, "given", peer, process, 0, (layout,), size, step=step)  # type: ignore[arg-type]
        )
        return number


def communicating(case: Case) -> Evidence:
    """Ranks that send every boundary forwards, every gradient backwards, and agree on a flag after each step."""
    made = honest(case)
    ranks = case.world.pipeline_ranks
    talks = {rank: _Talk() for rank in ranks}
    for expected in made.runs():
        trains = isinstance(case.program[expected.step], Train)
        _exchange(expected, ranks, talks, trains=trains)
    shown = []
    for one in made.shown:
        talk = talks.get(one.rank)
        traffic = Traffic(default="0")
        if talk is not None:
            moments = [
                Moment(kind, number)  # type: ignore[arg-type]
                for number in range(len(talk.operations))
                for kind in ("issue", "wait")
            ]
            traffic = Traffic(
                groups={"given": ranks},
                given="given",
                default="0",
                operations=tuple(talk.operations),
                moments=tuple(moments),
                cargo=talk.cargo,
            )
        shown.append(structs.replace(one, traffic=traffic))
    return dataclasses.replace(made, shown=tuple(shown))


def _exchange(
    expected: StepExpected, ranks: Sequence[int], talks: Mapping[int, _Talk], *, trains: bool
) -> None:
    last = len(ranks) - 1
    for position, rank in enumerate(ranks):
        talk = talks[rank]
        at = {"step": expected.step}
        for direction in (1, -1) if trains else (1,):
            for k in range(len(expected.outputs)):
                source, goal = position - direction, position + direction
                for other, kind, name, s in (
                    (source, "receive", "recv_", position if direction > 0 else position + 1),
                    (goal, "send", "send", position + 1 if direction > 0 else position),
                ):
                    if not 0 <= other <= last:
                        continue
                    tensor = expected.inputs[s][k][0].leaves()[0].tensor()
                    number = talk.add(kind, peer=other, process=ranks[other], tensor=tensor, name=name, **at)
                    what = {
                        (1, "receive"): "input",
                        (1, "send"): "output",
                        (-1, "receive"): "output gradient",
                        (-1, "send"): "input gradient",
                    }[direction, kind]
                    talk.cargo[number] = Cargo(what, position, k)  # type: ignore[arg-type]
        talk.add("collective", peer=-1, process=-1, tensor=torch.ones(1), name="allreduce_", **at)
        talk.add("collective", peer=last, process=ranks[last], tensor=torch.ones(1), name="broadcast_", **at)


# ------------------------------------------------------------------------------------------- all together

_BUFFERED = of_blocks(
    blocks.Linear(), blocks.BatchNorm(), program=(TRAIN, EVAL, TRAIN, Zero(set_to_none=False), EVAL, TRAIN)
)
_LONG = plain_case(
    TRAIN, TRAIN, Optimize(), Zero(), TRAIN, Optimize(), Optimize(), optimizer=Sgd(lr=0.125, momentum=0.5)
)
_THREE = plain_case(
    TRAIN,
    Zero(),
    TRAIN,
    model=Model(width=3, stages=(Stage(blocks=(blocks.Linear(),)),) * 3),
    world=World(size=3, pipeline_ranks=(0, 1, 2)),
)
_UNEVEN = plain_case(Train(batch_size=8, num_microbatches=3))

_TWO_DIRECTIONS = dataclasses.replace(
    TWO_DIRECTIONS, features=TWO_DIRECTIONS.features - {Feature.DECLARED_TABLE}
)

EVIDENCE: Mapping[str, Callable[[], Evidence]] = {
    **{name: functools.partial(honest_example, name) for name in CASES},
    "buffers over six steps": lambda: honest(_BUFFERED),
    "optimizer over seven steps": lambda: honest(_LONG),
    "three ranks": lambda: honest(_THREE),
    "loaded buffers": lambda: honest(
        of_blocks(blocks.Linear(), blocks.BatchNorm(), program=(Load(), TRAIN, Zero(), Load(), TRAIN))
    ),
    "one loss": lambda: one_loss(CASES["plain"]),
    "one loss, sum": lambda: one_loss(CASES["sum"]),
    "one loss over an uneven batch": lambda: one_loss(_UNEVEN, loss_over="batch"),
    "nothing returned": nothing_returned,
    "results everywhere": results_everywhere,
    "two directions": lambda: honest(plain_case(), capabilities=_TWO_DIRECTIONS, shares=HALVES),
    "replicas": lambda: replicated(_replicated(*_OPTIMIZED)),
    "replicas, three steps": lambda: replicated(_replicated(TRAIN, Zero(), TRAIN)),
    "replicas that evaluate": lambda: replicated(_replicated(TRAIN, EVAL, Zero(), TRAIN)),
    "replicas with a hook": lambda: replicated(_replicated(TRAIN, Zero(), TRAIN, hook=True)),
    "replicas with hooks": lambda: replicated(
        _replicated(
            TRAIN,
            Zero(),
            TRAIN,
            stages=(Stage(blocks=(blocks.Linear(), blocks.Hooked())), Stage(blocks=(blocks.Linear(),))),
        )
    ),
    "replicas with statistics": lambda: replicated(
        _replicated(
            TRAIN,
            Zero(),
            TRAIN,
            stages=(Stage(blocks=(blocks.Linear(), blocks.BatchNorm())), Stage(blocks=(blocks.Linear(),))),
        )
    ),
    "replicas with shared statistics": lambda: replicated(
        _replicated(
            TRAIN,
            Zero(),
            TRAIN,
            stages=(Stage(blocks=(blocks.Linear(), blocks.SyncedNorm())), Stage(blocks=(blocks.Linear(),))),
        )
    ),
    "sharded": sharded,
    "sharded, in mixed precision": lambda: sharded(mixed=True),
    "communicating": lambda: communicating(structs.replace(_THREE, program=(TRAIN, Zero(), TRAIN))),
    "communicating among bystanders": lambda: communicating(CASES["among bystanders"]),
}
"""All evidence by name, made when first used."""


@functools.cache
def evidence_of(name: str) -> Evidence:
    """One of `EVIDENCE`."""
    return EVIDENCE[name]()


@functools.cache
def judging(name: str) -> tuple[str, ...]:
    """The requirements that judge an evidence and find in it what they look at.

    An evidence of several subjects at once is judged by the requirements about one of them.
    """
    made = evidence_of(name)
    known = tuple(one for one in JUDGEMENTS if _finds_what_it_needs(JUDGEMENTS[one], made))
    whole = tuple(one for one in known if JUDGEMENTS[one].applies(made.case))
    own = traits(made.case)
    return whole or tuple(one for one in known if own & JUDGEMENTS[one].about)


def _finds_what_it_needs(judgement: Judgement, made: Evidence) -> bool:
    if judgement.aftermath or judgement.refused or not judgement.needs <= made.capabilities.features:
        return False
    claim = made.capabilities.schedule(made.case.schedule)
    assert claim is not None
    recorded = next(made.members).traffic is not None
    return (not judgement.named or is_named(claim)) and (recorded or "traffic" not in judgement.observe)
