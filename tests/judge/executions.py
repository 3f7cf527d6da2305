"""Evidence made by hand: what ranks computed, written like schedule tables."""

from __future__ import annotations

from typing import Literal

import torch

from pipeconform.adapter import Capabilities, Feature, Placement, ScheduleClaim
from pipeconform.case.blocks import Linear
from pipeconform.case.case import Case, Eval, Model, Stage, Train, World
from pipeconform.judge.evidence import Evidence
from pipeconform.observe.observation import (
    Event,
    Forward,
    Observation,
    Reference,
    StepExpected,
    StepShown,
    Structure,
)
from pipeconform.schedule import Action, Kind, Table

UNKNOWN = 99
"""A microbatch that does not exist."""


def value(stage: int, microbatch: int) -> tuple[Structure, ...]:
    """The inputs of a stage for a microbatch; no two are near each other."""
    return (Structure.of(torch.tensor([100.0 * stage + 10.0 * microbatch + 5.0])),)


def shown(text: str, *, step: int = 0, first_call: int = 0) -> StepShown:
    """What a rank records for ``0F0 0B0 …``.

    Stage 0 has no input part. ``(1F0)`` is a forward inside a backward, ``1F99`` one of no microbatch,
    ``1f0`` one without gradients; ``1I0 1W0`` are two backwards. A backward belongs to the latest forward.
    Backwards are numbered from 0, and a forward inside one is inside the next that is written.
    """
    events: list[Event] = []
    forwards: list[Forward] = []
    calls: dict[tuple[int, int | None], int] = {}
    task = 0
    for when, word in enumerate(text.split()):
        inside, action = word.startswith("("), Action.parse(word.strip("()").replace("f", "F"))
        s, k = action.stage, action.microbatch or 0
        if action.kind is Kind.F:
            call = first_call + len(forwards)
            grad = "f" not in word
            calls[s, k] = call
            parts = ("W" if s == 0 else "IW") if grad else ""
            events.append(Event("F", s, call, task if inside else -1, float(when), parts))
            inputs = value(s, k)
            forwards.append(Forward(stage=s, grad_enabled=grad, inputs=inputs, output=inputs[0], call=call))
            continue
        passes = {Kind.B: "WIW", Kind.I: "I", Kind.W: "W"}[action.kind]
        events += [
            Event(kind, s, calls.get((s, k), -1), task, float(when))  # type: ignore[arg-type]
            for kind in (passes if s else passes.replace("I", ""))
        ]
        task += 1
    return StepShown(step=step, events=tuple(events), forwards=tuple(forwards))


def evidence(
    *ranks: str,
    m: int,
    v: int = 1,
    family: str | None = None,
    placement: Placement = Placement.LOOP,
    trains: bool = True,
    table: str | None = None,
    split_weights: Literal["all", "deferred"] = "all",
) -> Evidence:
    """One step on as many ranks as there are texts."""
    p = len(ranks)
    run = (Train if trains else Eval)(batch_size=m, num_microbatches=m)
    claim = ScheduleClaim(
        name="it",
        family=family,
        placement=placement,
        stages_per_rank=(v,),
        trains=trains,
        split_backward=True,
        split_weights=split_weights,
    )
    case = Case(
        model=Model(width=1, stages=(Stage(blocks=(Linear(),)),) * (p * v)),
        schedule="it",
        stages_per_rank=v,
        world=World(size=p, pipeline_ranks=tuple(range(p))),
        program=(run,),
    )
    inputs = tuple(tuple(value(s, k) for k in range(m)) for s in range(p * v))
    reference = Reference(steps=(StepExpected(step=0, inputs=inputs),))
    return Evidence(
        case=case,
        capabilities=Capabilities(schedules=(claim,), features=frozenset({Feature.DECLARED_TABLE})),
        shown=tuple(
            Observation(rank=r, pipeline_rank=r, table=table, steps=(shown(text),))
            for r, text in enumerate(ranks)
        ),
        expected=reference,
        bounded=lambda bounds: reference,
    )


def words(table: Table) -> list[str]:
    """Per rank a text for `evidence`: the table's computations, pairs one after the other."""
    return [" ".join(str(leaf) for action in actions for leaf in action.leaves) for actions in table]
