"""Violations that are made small by the same candidates share their executions."""

from collections import Counter

import pytest

from pipeconform.campaign import pipeline_runner as module
from pipeconform.campaign.cell import judge_cell
from pipeconform.campaign.pipeline_runner import PipelineRunner
from pipeconform.judge.evidence import Finding
from pipeconform.judge.outcome import Outcome, Status
from pipeconform.spec import requirement
from tests.campaign.campaigns import ExecutesNothing, campaign


class _Counting(ExecutesNothing):
    def __init__(self):
        self.executed = Counter()

    def execute(self, case, *, observe=()):
        self.executed[case.digest] += 1
        return super().execute(case, observe=observe)


@pytest.fixture
def judged(monkeypatch):
    """Judge TRN-4 by a rule (case, variant) → kinds; return cells by variant, and the executions by variant."""

    def judged(rule, variants=("default",)):
        executors = {variant: _Counting() for variant in variants}
        names = {id(one): name for name, one in executors.items()}

        def judge(row, execution, executor, **_):
            if row.id != "TRN-4":
                return ()
            return tuple(
                Outcome(Status.FAILED, Finding(kind=kind, message=kind))
                for kind in rule(execution.case, names[id(executor)])
            )

        monkeypatch.setattr(module, "judge", judge)
        monkeypatch.setattr(module, "localise", lambda *_: None)
        run = campaign()
        run.runners = {name: PipelineRunner(one) for name, one in executors.items()}
        cells = {name: judge_cell(run, requirement("TRN-4"), "GPipe", name) for name in variants}
        return cells, {name: one.executed for name, one in executors.items()}

    return judged


def _crosses(case, variant):
    return ("gradient value",) if case.num_ranks > 1 else ()


def test_a_second_violation_in_the_same_cases_costs_no_executions(judged):
    (one,), (alone,) = (found.values() for found in judged(_crosses))
    (two,), (both,) = (
        found.values()
        for found in judged(lambda *asked: _crosses(*asked) and ("gradient value", "loss value"))
    )

    assert one.violations[0].shrink_executions > 2
    assert [violation.case for violation in two.violations] == [one.violations[0].case] * 2
    assert both == alone


def test_what_is_reported_was_executed_again_after_it_was_found(judged):
    (cell,), (executed,) = (found.values() for found in judged(_crosses))

    assert executed[cell.violations[0].digest] >= 2


def test_a_case_that_cannot_be_made_smaller_is_executed_three_times(judged):
    first = []

    def only_one(case, variant):
        first.append(case.digest)
        return ("gradient value",) if case.digest == first[0] else ()

    (cell,), (executed,) = (found.values() for found in judged(only_one))

    assert cell.violations[0].digest == first[0]
    assert (cell.violations[0].confirmed, executed[first[0]]) == (True, 3)


def test_a_variant_shows_the_case_of_the_default_if_that_is_violated_there_too(judged):
    cells, executed = judged(_crosses, ("default", "validated"))

    default, validated = (cells[name].violations[0] for name in ("default", "validated"))
    assert validated.case == default.case
    assert (validated.confirmed, validated.shrink_executions) == (True, 1)
    assert executed["validated"][default.digest] >= 2
    assert sum(executed["validated"].values()) < sum(executed["default"].values())


def test_a_variant_in_which_that_case_is_met_has_a_smallest_case_of_its_own(judged):
    def rule(case, variant):
        return ("gradient value",) if case.num_ranks > (1 if variant == "default" else 2) else ()

    cells, _ = judged(rule, ("default", "validated"))

    assert cells["default"].violations[0].case.num_ranks == 2
    assert cells["validated"].violations[0].case.num_ranks == 3
    assert cells["validated"].violations[0].confirmed
