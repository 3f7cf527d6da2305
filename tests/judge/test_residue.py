"""What ranks keep is reported with kind and place; what does not grow is not reported."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from pipeconform.bounds.gauge import Gauge
from pipeconform.errors import HarnessError
from pipeconform.judge.evidence import Evidence
from pipeconform.observe.observation import NUM_ROUNDS, WARM_UP, Census, Held, Kept
from tests.facts import tells
from tests.judge.honest import FLAT, M, changed, found, honest, honest_example, plain_case, told


def _living_on(made: Evidence, *, rank: int, **fields: object) -> Evidence:
    """The same evidence with another life after the program on one rank."""
    shown = list(made.shown)
    shown[rank] = msgspec.structs.replace(shown[rank], lived_on=msgspec.structs.replace(FLAT, **fields))
    return dataclasses.replace(made, shown=tuple(shown))


def test_an_output_that_is_alive_after_the_step_is_told_with_its_stage() -> None:
    wrong = changed(honest_example("plain"), rank=1, step=2, kept=Kept(at_once=1, inputs=0, outputs=(1, 1)))

    assert told("LIF-3", wrong) == [("outputs kept", 2, 1, 1, None)]


def test_who_keeps_the_first_tensor_stands_in_a_line_of_its_own() -> None:
    """The first line and the kind are the same, whoever keeps it: stored expectations compare them."""
    made = honest_example("plain")

    def with_holder(requirement: str, **holder: str) -> list[list[str]]:
        wrong = changed(made, rank=1, step=2, kept=Kept(at_once=1, inputs=2 * M, outputs=(1, 1), **holder))
        return [one.message.splitlines() for one in found(requirement, wrong)]

    told, quiet = with_holder("LIF-3", holds_output="Engine.outputs[0]"), with_holder("LIF-3")
    assert (len(told[0]), len(quiet[0])) == (2, 1)
    assert tells(told[0][1], "first", "kept by Engine.outputs[0]")
    assert told[0][0] == quiet[0][0]
    told, quiet = with_holder("LIF-7", holds_input="Engine.buffers[0]"), with_holder("LIF-7")
    assert (len(told[0]), len(quiet[0])) == (2, 1)
    assert tells(told[0][1], "first", "kept by Engine.buffers[0]")
    assert told[0][0] == quiet[0][0]


def test_a_saved_tensor_that_is_alive_after_the_step_is_told_with_its_stage() -> None:
    made = honest_example("plain")
    call = made.shown[1].steps[0].forwards[0].call

    wrong = changed(made, rank=1, held=(Held(call, -1, 2),))

    assert told("LIF-3", wrong) == [("graph kept", 0, 1, 1, None)]


def test_what_is_kept_in_the_middle_of_a_step_is_not_left_behind() -> None:
    made = changed(honest_example("plain"), rank=1, held=(Held(0, 1, 2),))

    assert found("LIF-3", made) == []


@pytest.mark.parametrize("what", ["tensors", "threads", "descriptors", "groups"])
@pytest.mark.parametrize(("where", "word"), [("steps", "step"), ("rounds", "pipeline")])
def test_what_grows_is_told_and_what_shrinks_is_not(what: str, where: str, word: str) -> None:
    few, many = FLAT.steps[0], msgspec.structs.replace(FLAT.steps[0], **{what: 99})
    made = honest_example("plain")

    grown = _living_on(made, rank=0, **{where: (few, many)})

    assert told("LIF-3", grown) == [(f"{what} left by every {word}", None, 0, None, None)]
    assert found("LIF-3", _living_on(made, rank=0, **{where: (many, few)})) == []


def test_a_message_that_a_transport_holds_a_moment_longer_is_no_leak() -> None:
    few = FLAT.steps[0]
    most = msgspec.structs.replace(few, tensors=few.tensors + NUM_ROUNDS - WARM_UP - 1)
    made = honest_example("plain")

    assert found("LIF-3", _living_on(made, rank=0, steps=(few, most))) == []


@pytest.mark.parametrize("field", ["steps", "rounds"])
def test_growth_is_compared_where_there_are_two_counts(field: str) -> None:
    one = FLAT.steps[0]

    def compared(counts: tuple[Census, ...]) -> int:
        made = _living_on(honest_example("plain"), rank=0, **{field: counts})
        made = dataclasses.replace(made, gauge=Gauge())
        assert found("LIF-3", made) == []
        return made.gauge.compared

    assert compared(()) == compared((one,)) == compared((one, one)) - 1


@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_s_growth_is_told(rank: int) -> None:
    few, many = FLAT.steps[0], msgspec.structs.replace(FLAT.steps[0], threads=99)
    grown = _living_on(honest_example("plain"), rank=rank, steps=(few, few, many))

    assert told("LIF-3", grown) == [("threads left by every step", None, rank, None, None)]


def test_exactly_one_more_for_every_round_is_a_leak() -> None:
    few = FLAT.steps[0]
    more = msgspec.structs.replace(few, groups=few.groups + NUM_ROUNDS - WARM_UP)

    assert len(found("LIF-3", _living_on(honest_example("plain"), rank=0, steps=(few, more)))) == 1


def test_one_process_per_build_has_no_rounds() -> None:
    assert found("LIF-3", _living_on(honest_example("plain"), rank=0, rounds=())) == []


@pytest.mark.parametrize("field", ["at_once", "inputs"])
def test_activations_are_held_to_the_schedules_bound(field: str) -> None:
    """GPipe holds all m microbatches, and not one more."""
    made = honest(plain_case())

    def with_kept(number: int) -> Evidence:
        counts = {"at_once": 1, "inputs": 0, field: number}
        return changed(made, rank=1, kept=Kept(outputs=(), **counts))

    kind = {"at_once": "activations", "inputs": "boundary tensors"}[field]
    assert told("LIF-7", with_kept(M + 1)) == [(f"{kind} beyond the bound", 0, 1, None, None)]
    assert found("LIF-7", with_kept(M)) == []


def test_a_second_close_that_raises_and_a_group_that_is_gone_are_told() -> None:
    made = honest_example("plain")

    assert told("LIF-8", _living_on(made, rank=1, closing_error="ValueError: closed")) == [
        ("second close raises", None, 1, None, None)
    ]
    assert told("LIF-8", _living_on(made, rank=0, group_works=False)) == [
        ("group unusable", None, 0, None, None)
    ]


@pytest.mark.parametrize("requirement", ["LIF-3", "LIF-7", "LIF-8"])
def test_ranks_that_recorded_nothing_pass_nothing(requirement: str) -> None:
    made = changed(honest_example("plain"), rank=0, kept=None)
    shown = tuple(msgspec.structs.replace(one, lived_on=None) for one in made.shown)

    with pytest.raises(HarnessError, match="recorded nothing"):
        found(requirement, dataclasses.replace(made, shown=shown))
