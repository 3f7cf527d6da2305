"""Failing cases become small by few executions, and honestly so."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from pipeconform.campaign.minimise import Budget
from pipeconform.campaign.simplify import simplify
from pipeconform.case.blocks import Attention, Mlp, Norm
from pipeconform.case.case import Case, Model, Stage, Train, World, Zero
from pipeconform.case.focus import Focus, Limits
from pipeconform.case.simpler.candidates import PARTS, leaps, simpler
from pipeconform.case.simpler.scope import Scope
from pipeconform.errors import HarnessError
from pipeconform.judge.evidence import Finding
from pipeconform.judge.outcome import Outcome, Status
from tests.case.examples import EVERYTHING

OUTCOME = Outcome(Status.FAILED, Finding(kind="wrong", message="wrong"))
ENOUGH = Budget(executions=1000)
SCOPE = Scope(
    limits=Limits(capabilities=EVERYTHING, max_ranks=6), claim=EVERYTHING.schedules[0], focus=Focus.PLAIN
)
STEP = Train(batch_size=14, num_microbatches=7)
LARGE = Case(
    model=Model(width=8, sequence=3, stages=(Stage(blocks=(Norm(), Attention(), Mlp())),) * 4),
    schedule="GPipe",
    world=World(size=6, pipeline_ranks=(1, 2, 4, 5)),
    program=(STEP, Zero(), STEP),
    seed=5,
)


def _made_small(rule, *, target=LARGE, budget=ENOUGH):
    executed = []

    def check(case):
        executed.append(case)
        return OUTCOME if rule(case) else None

    def allowed(case):
        return SCOPE.holds(case, origin=target)

    found = simplify(target, OUTCOME, check, allowed=allowed, budget=budget)
    assert len(executed) == len({case.digest for case in executed}) == found.executions
    return found, allowed


RULES = {
    "anything": (lambda case: True, 12),
    "two ranks": (lambda case: case.num_ranks >= 2, 15),
    "more microbatches than ranks": (lambda case: case.runs[0].num_microbatches > case.num_ranks >= 2, 25),
    "two steps of four ranks": (lambda case: len(case.runs) > 1 and case.num_ranks == 4, 40),
    "width": (lambda case: case.model.width >= 3, 20),
    "attention of the last stage": (lambda case: Attention() in case.model.stages[-1].blocks, 30),
}


@pytest.mark.parametrize("name", RULES)
def test_the_result_shows_it_and_nothing_simpler_does(name):
    rule, most = RULES[name]

    found, allowed = _made_small(rule)

    assert (found.minimal, found.confirmed) == (True, True)
    assert rule(found.case)
    assert not any(rule(one) for part in PARTS for one in simpler(found.case, part, allowed))
    assert found.executions <= most


def test_the_result_does_not_depend_on_how_often_it_is_asked_for():
    rule, _ = RULES["more microbatches than ranks"]

    assert _made_small(rule)[0] == _made_small(rule)[0]


@pytest.mark.parametrize("executions", [1, 2, 5])
def test_a_spent_budget_gives_the_best_so_far_and_says_so(executions):
    found, _ = _made_small(lambda case: case.num_ranks >= 2, budget=Budget(executions=executions))

    assert (found.minimal, found.confirmed, found.executions) == (False, True, executions)


def test_without_any_budget_the_case_is_executed_once_more():
    found, _ = _made_small(lambda case: True, budget=Budget(executions=0))

    assert (found.case, found.minimal, found.confirmed, found.executions) == (LARGE, False, True, 1)


def test_what_does_not_happen_again_is_reported_unconfirmed():
    found, _ = _made_small(lambda case: False)

    assert (found.case, found.minimal, found.confirmed, found.executions) == (LARGE, False, False, 3)


def test_a_case_is_executed_again_only_if_none_of_the_simplest_candidates_shows_it():
    executed = []

    def check(shows):
        def checked(case):
            executed.append(case)
            return OUTCOME if shows(case) else None

        return checked

    def asked(shows):
        executed.clear()
        simplify(LARGE, OUTCOME, check(shows), allowed=lambda case: True, budget=ENOUGH)
        return LARGE in executed

    assert not asked(lambda case: True)
    assert asked(lambda case: case == LARGE)
    assert executed.index(LARGE) == 2


def executed_until_minimal(shows):
    """What is executed in order to make the large case small, and the result."""
    executed = []

    def check(case):
        executed.append(case)
        return dataclasses.replace(OUTCOME, verdicts=case.digest) if shows(case) else None

    return executed, simplify(LARGE, OUTCOME, check, allowed=lambda case: True, budget=ENOUGH)


def test_after_the_case_itself_the_other_leaps_are_tried_before_single_cuts():
    first, second, third = itertools.islice(leaps(LARGE, lambda case: True), 3)
    executed, found = executed_until_minimal(lambda case: case not in (first, second))

    assert executed[:4] == [first, second, LARGE, third]
    assert found.minimal


def test_a_leap_that_shows_it_is_made_smaller_and_no_other_is_tried():
    first, second, third = itertools.islice(leaps(LARGE, lambda case: True), 3)
    executed, _ = executed_until_minimal(lambda case: True)
    assert executed[0] == first
    assert LARGE not in executed
    executed, _ = executed_until_minimal(lambda case: case == second)
    assert executed[:2] == [first, second]
    assert third not in executed[:3]


def test_the_outcome_is_that_of_the_smallest_case_or_the_first_if_nothing_shows_it_again():
    _, found = executed_until_minimal(lambda case: True)
    assert found.outcome.verdicts == found.case.digest
    _, found = executed_until_minimal(lambda case: False)
    assert (found.outcome, found.confirmed) == (OUTCOME, False)


def test_an_error_of_the_harness_is_not_a_finding():
    def check(case):
        raise HarnessError("the oracle failed")

    with pytest.raises(HarnessError, match="the oracle failed"):
        simplify(LARGE, OUTCOME, check, allowed=lambda case: True, budget=ENOUGH)
