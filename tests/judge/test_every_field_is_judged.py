"""Every field that ranks record is spoilt in turn, everywhere; the requirements in charge of it must notice.

What is recorded is walked by its annotations (`tests.judge.spoiling`), so a new field needs a requirement that is in
charge of it (`tests.judge.charges`), or a reason why a fault in it is none.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec import structs

from pipeconform.bounds.gauge import Gauge
from pipeconform.case.case import Load
from pipeconform.errors import PipeconformError
from pipeconform.judge.evidence import Evidence
from pipeconform.judge.lifecycle import repeats_exactly
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.observe.observation import Observation, StepShown
from pipeconform.oracle.full_model import reference
from pipeconform.oracle.masks import masks_of
from tests.judge.allowed import Within
from tests.judge.charges import CHARGES, ELSEWHERE, NO_FAULT, NO_VERDICT, OTHER_STEPS, is_charged, is_no_fault
from tests.judge.fields_page import page
from tests.judge.grid import EVIDENCE, evidence_of, judging
from tests.judge.spoiling import Spoil, every_field, fields_of, spoils

pytestmark = pytest.mark.xdist_group("judge/every field")  # they share the changes of each evidence
WITHIN = "within the bound"
_A_FEW = 3
"""In the fast part, how many changes of each kind to each field are tried, in one evidence."""


def in_charge(name: str) -> list[str]:
    """The requirements that judge an evidence and are in charge of a field."""
    return [requirement for requirement in judging(name) if requirement in CHARGES]


def _pairs() -> Iterator[tuple[str, str]]:
    return ((requirement, name) for name in EVIDENCE for requirement in in_charge(name))


@functools.cache
def _spoils(name: str) -> tuple[tuple[int, Spoil], ...]:
    made = evidence_of(name)
    return tuple((one.rank, spoil) for one in made.shown for spoil in spoils(one, Within(made, one.rank)))


def charged(requirement: str, name: str) -> list[tuple[int, Spoil]]:
    """The faults that a requirement must notice in an evidence."""
    made = evidence_of(name)
    return [
        (rank, spoil)
        for rank, spoil in _spoils(name)
        if spoil.how != WITHIN
        and is_charged(requirement, spoil, made)
        and not is_no_fault(requirement, spoil, made, rank)
    ]


def _some(found: Sequence[tuple[int, Spoil]]) -> Iterator[tuple[int, Spoil]]:
    """Of each kind of change to each field a few, by a hash of where they are: late steps and ranks like early ones."""
    alike: dict[tuple[str, str], list[tuple[int, Spoil]]] = {}
    for rank, spoil in found:
        alike.setdefault((spoil.field, spoil.how), []).append((rank, spoil))
    for several in alike.values():
        yield from sorted(several, key=lambda one: hashlib.sha256(f"{one[0]} {one[1]}".encode()).digest())[
            :_A_FEW
        ]


def spoilt(made: Evidence, rank: int, spoil: Spoil) -> Evidence:
    """The evidence with one change; where masks were recorded, the oracle replays those that are recorded now."""
    index = next(index for index, one in enumerate(made.shown) if one.rank == rank)
    shown = (*made.shown[:index], spoil.apply(made.shown[index]), *made.shown[index + 1 :])
    if spoil.field != "Forward.masks":
        return dataclasses.replace(made, shown=shown)

    @functools.cache
    def expected(bounds):
        masks = dict(masks_of(made.case, shown))
        return reference(made.case, scale=made.capabilities.scale, masks=masks, bounds=bounds)

    return dataclasses.replace(made, shown=shown, expected=expected("none"), bounded=expected)


def _notices(requirement: str, made: Evidence) -> bool:
    try:
        return any(True for _ in JUDGEMENTS[requirement].judge(made))
    except PipeconformError:
        return True  # no verdict can be drawn, and the run says so
    except (IndexError, KeyError, ValueError):
        # records that contradict themselves, which the harness never makes
        if any(one.traffic is not None for one in made.shown):
            return True
        raise


def _unnoticed(requirement: str, name: str, found: Iterator[tuple[int, Spoil]]) -> list[str]:
    made = evidence_of(name)
    return [
        f"rank {rank}: {spoil}"
        for rank, spoil in found
        if not _notices(requirement, spoilt(made, rank, spoil))
    ]


@pytest.mark.parametrize("name", EVIDENCE)
def test_what_a_requirement_is_in_charge_of_it_notices(name):
    unnoticed = {one: _unnoticed(one, name, _some(charged(one, name))) for one in in_charge(name)}

    assert {one: missed for one, missed in unnoticed.items() if missed} == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", EVIDENCE)
def test_it_notices_it_at_every_step_rank_stage_and_microbatch(name):
    unnoticed = {one: _unnoticed(one, name, iter(charged(one, name))) for one in in_charge(name)}

    assert {one: missed for one, missed in unnoticed.items() if missed} == {}


# -------------------------------------------------------------------------------- differences within bounds


def _lasting(made: Evidence, rank: int, spoil: Spoil) -> Evidence:
    """A value within its bound, as an engine would show it: as long as it lasts, and on all replicas alike."""
    step, rest, changed = _since(made, rank, spoil), spoil.path[2:], made
    place = next(one.pipeline_rank for one in made.shown if one.rank == rank)
    old = _value(made.shown, rank, spoil.path)
    for one in made.shown:
        if one.pipeline_rank != place or (one.rank != rank and made.case.world.num_replicas == 1):
            continue
        for later in range(step, len(made.case.program)):
            path = ("steps", later, *rest)
            if _value(made.shown, one.rank, path) != old:
                break
            changed = spoilt(changed, one.rank, dataclasses.replace(spoil, path=path))
    return changed


def _since(made: Evidence, rank: int, spoil: Spoil) -> int:
    """The step from which on there was the value that a change is about."""
    step, rest = int(spoil.path[1]), spoil.path[2:]
    old = _value(made.shown, rank, spoil.path)
    while step and _value(made.shown, rank, ("steps", step - 1, *rest)) == old:
        step -= 1
    return step


def _is_given(made: Evidence, step: int) -> bool:
    return step == 0 or isinstance(made.case.program[step], Load)


def _value(shown: tuple[Observation, ...], rank: int, path: tuple[int | str, ...]) -> object:
    value: object = next(one for one in shown if one.rank == rank)
    for key in path:
        try:
            value = getattr(value, key) if hasattr(type(value), "__struct_fields__") else value[key]  # type: ignore[index,arg-type]
        except (KeyError, IndexError, TypeError):
            return None
    return value


_HELD_BY_HAND = frozenset({"StepShown.gradient_norm", "StepShown.loss"})
"""Whose bounds are the judgement's own: tests/judge/test_conventions.py."""


_CLOSER = {
    "masters": ("StepShown.parameters", "StepShown.gradients"),
    "clipped copies": ("StepShown.parameters", "StepShown.gradients"),
    "clipped scaled": ("StepShown.parameters", "StepShown.gradients"),
    "restarted with a scale": ("StepShown.parameters", "StepShown.gradients"),
    "sums": ("StepShown.gradients",),
}
"""Which LIF-10, TRN-23 and TRN-27 hold against each other, and TRN-26 against numbers of its own, closer than the
reference's bounds: tests/judge/test_masters.py and test_sums.py."""


@pytest.mark.parametrize("name", EVIDENCE)
def test_what_is_within_its_bound_nobody_notices(name):
    made = evidence_of(name)
    inside = [
        (rank, spoil)
        for rank, spoil in _spoils(name)
        if spoil.how == WITHIN
        and spoil.field not in _HELD_BY_HAND
        and spoil.field not in _CLOSER.get(name, ())
    ]
    found = []
    for rank, spoil in _some(inside):
        in_step = spoil.path[0] == "steps"
        if spoil.field == "StepShown.parameters" and _is_given(made, _since(made, rank, spoil)):
            continue  # bit for bit what the model was built with, or what was loaded
        other = _lasting(made, rank, spoil) if in_step else spoilt(made, rank, spoil)
        found += [
            f"{requirement}: rank {rank}: {spoil}"
            for requirement in in_charge(name)
            if _notices(requirement, other)
        ]

    assert found == []


# ------------------------------------------------------------------------------------------ completeness


def test_every_recorded_field_has_a_requirement_in_charge_or_a_reason():
    charged = {place.partition("@")[0] for places in CHARGES.values() for place in places}
    excused = {place.partition("@")[0] for place in NO_VERDICT}

    assert every_field(Observation) - charged - excused == set()
    assert charged <= every_field(Observation)
    assert excused <= every_field(Observation)


def test_values_that_are_there_after_every_step_are_judged_after_each_or_have_a_reason():
    made = evidence_of("loaded buffers")
    lasting = {"gradients", "parameters", "buffers"}
    kinds = {type(step).__name__ for name in EVIDENCE for step in evidence_of(name).case.program}

    assert {name for name in lasting if all(getattr(step, name) for step in made.shown[0].steps)} == lasting
    for name in lasting:
        field = f"StepShown.{name}"
        judged = {kind for kind in kinds for places in CHARGES.values() if f"{field}@{kind}" in places}
        assert judged == kinds or field in OTHER_STEPS


def test_every_requirement_is_in_charge_of_a_field_or_tested_elsewhere():
    plain = {name for name, one in JUDGEMENTS.items() if one.aftermath is None and one.refused is None}

    assert plain - CHARGES.keys() == set(ELSEWHERE)


def test_every_charge_is_tried():
    """On some evidence there is a value in each field that a requirement is in charge of."""
    tried = {
        (requirement, spoil.field)
        for requirement, name in _pairs()
        for _, spoil in charged(requirement, name)
    }
    charges = {
        (requirement, place.partition("@")[0]) for requirement, places in CHARGES.items() for place in places
    }
    # only some evidence has one loss for the whole batch, says which microbatches it has, or keeps something
    optional = {"StepShown.loss", "StepShown.microbatches", "Held.before"}

    assert {one for one in charges - tried if one[1] not in optional} == set()


def test_every_excuse_excuses_something():
    def used(test) -> bool:
        return any(
            is_charged(requirement, spoil, evidence_of(name))
            and test(requirement, spoil, evidence_of(name), rank)
            for requirement, name in _pairs()
            for rank, spoil in _spoils(name)
        )

    assert [test.__name__ for test in NO_FAULT if not used(test)] == []


# ------------------------------------------------------------------------------------------- determinism

_NEED_NOT_REPEAT = {
    "step": "set by the harness",
    "microbatches": "which ranks hold what may change where two ranks own a stage; the merged values may not",
    "kwarg_gradients": "TRN-7 compares them with the reference",
    "forwards": "a dry run on uninitialised memory sees other values every time",
    "events": "times differ; SCH judges the order",
    "held": "memory",
    "kept": "memory",
    "flow": "shows where a wrong value was first",
    "answers": "words",
    "gradient_norm": "sums over ranks in an order that may change",
    "loss_scale": "TRN-24 compares it with the reference",
    "differentiable": "LIF-2",
    "gradient_shards": "DPC-8",
    "parameter_shards": "DPC-8",
    "reductions": "DPC-2",
    "hooked": "DPC-4",
    "begun": "TRN-30",
}


def _moved(step: StepShown, name: str) -> StepShown:
    """The step with the last value of a field changed, or one where there was none."""
    found = [spoil for spoil in spoils(step) if spoil.path[0] == name]
    values = [spoil for spoil in found if spoil.how == "value"]
    return (values or found)[-1].apply(step)


@pytest.mark.parametrize("name", sorted(fields_of(StepShown)))
def test_what_is_judged_by_value_must_repeat(name):
    """LIF-5."""
    made = evidence_of("buffers over six steps")
    last = made.shown[-1]
    for index in range(len(last.steps)):
        steps = (*last.steps[:index], _moved(last.steps[index], name), *last.steps[index + 1 :])
        again = (*made.shown[:-1], structs.replace(last, steps=steps))
        found = [
            (one.step, one.rank)
            for one in repeats_exactly(made.shown, again, "in new processes", gauge=Gauge())
        ]

        assert found == ([] if name in _NEED_NOT_REPEAT else [(index, last.rank)])


def test_the_walk_changes_values_in_every_step_of_every_rank():
    values = {
        (rank, spoil.path[1]) for rank, spoil in _spoils("optimizer over seven steps") if spoil.how == "value"
    }

    assert values == {(rank, step) for rank in range(2) for step in range(7)}


def test_the_page_about_fields_is_current():
    committed = (Path(__file__).parents[2] / "docs/judged-fields.md").read_text()

    assert committed == page(), "run 'make standard' and commit docs/judged-fields.md"
