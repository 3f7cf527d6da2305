"""An implementation that has its own loss gets only cases with that loss, about whatever else it claims."""

from __future__ import annotations

import dataclasses

import pytest

from pipeconform.adapter import Capabilities, Feature, ScheduleClaim
from pipeconform.case.blocks import BatchNorm, Branch, Head, Unused
from pipeconform.case.draw.claimed import is_claimed
from pipeconform.case.draw.traits import traits
from pipeconform.case.focus import Focus, Limits
from pipeconform.case.simpler.scope import Scope
from pipeconform.oracle.full_model import reference
from tests.case.draw.drawn import drawn_under
from tests.case.examples import EVERYTHING, small_case

CLASSES = dataclasses.replace(EVERYTHING, losses=("cross_entropy",))
SQUARES = dataclasses.replace(EVERYTHING, losses=("mse",))


@pytest.mark.parametrize(("capabilities", "loss"), [(CLASSES, "cross_entropy"), (SQUARES, "mse")])
def test_every_case_has_the_only_loss_and_is_about_something_else(capabilities, loss) -> None:
    found = {focus: drawn_under(capabilities, focus) for focus in Focus}

    assert sum(map(bool, found.values())) > 60
    for focus, cases in found.items():
        assert all(case.loss.kind == loss for case in cases)
        assert focus is Focus.TARGETS or not any(Focus.TARGETS in traits(case) for case in cases)


def test_cases_about_targets_have_other_targets_than_all_cases() -> None:
    found = drawn_under(CLASSES, Focus.TARGETS, range(6))

    assert all(traits(case) == {Focus.TARGETS} for case in found)
    assert all(case.loss.ignore or case.model.tokens for case in found)
    assert all(case.loss.scaled for case in drawn_under(SQUARES, Focus.TARGETS))


def test_an_implementation_without_anything_special_about_its_loss_does_not_claim_it() -> None:
    claim = ScheduleClaim(name="GPipe")
    fixed = Capabilities(schedules=(claim,), losses=("cross_entropy",))

    assert not is_claimed(Focus.TARGETS, claim, fixed)
    assert is_claimed(Focus.TARGETS, claim, dataclasses.replace(fixed, features=frozenset({Feature.TOKENS})))
    assert is_claimed(Focus.TARGETS, claim, Capabilities(schedules=(claim,)))


@pytest.mark.parametrize(
    "focus",
    [
        Focus.PLAIN,
        Focus.BOUNDARY,
        Focus.STRUCTURED,
        Focus.MERGES,
        Focus.REPLICAS,
        Focus.BATCH_DIM,
        Focus.VIEWS,
    ],
)
def test_the_full_model_can_be_trained_on_it(focus: Focus) -> None:
    case = next(one for one in drawn_under(CLASSES, focus) if one.trains)
    steps = reference(case, scale=CLASSES.scale).steps

    assert any(loss is not None for step in steps for loss in step.losses or ())


def test_what_replicas_have_besides_stands_in_front_of_the_head() -> None:
    drawn = drawn_under(CLASSES, Focus.REPLICA_CONTENTS, range(12))
    ends = [case.model.stages[-1].blocks for case in drawn]

    assert any(isinstance(block, BatchNorm | Unused | Branch) for end in ends for block in end)
    assert all(isinstance(end[-1], Head) for end in ends)


def test_no_case_is_made_simpler_by_another_loss() -> None:
    (claim, *_) = CLASSES.schedules
    origin = drawn_under(CLASSES, Focus.PLAIN)[0]
    scope = Scope(limits=Limits(capabilities=CLASSES), claim=claim, focus=Focus.PLAIN)

    assert scope.holds(origin, origin=origin)
    assert not scope.holds(small_case(), origin=origin)


def test_an_implementation_has_a_loss() -> None:
    with pytest.raises(ValueError, match="no loss is claimed"):
        Capabilities(schedules=(), losses=())
