"""Every judgement counts what it compares."""

import dataclasses

import pytest

from pipeconform.bounds.gauge import Gauge, Uncounted
from pipeconform.case.case import Train, World
from pipeconform.judge.conditions import BYSTANDER, SEVERAL_RANKS, SEVERAL_STAGES
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.observe.observation import Reference
from tests.case.examples import small_case
from tests.judge.honest import honest

BY_VALUES = [identifier for identifier, row in JUDGEMENTS.items() if not (row.aftermath or row.refused)]


def unseen():
    """An execution of which the ranks showed nothing, and that had no steps."""
    made = honest(small_case())
    return dataclasses.replace(made, shown=(), expected=Reference(steps=()), gauge=Gauge())


@pytest.mark.parametrize("identifier", BY_VALUES)
def test_a_judgement_whose_loops_never_run_counts_nothing(identifier):
    evidence = unseen()
    try:
        found = list(JUDGEMENTS[identifier].judge(evidence))
    except (RuntimeError, AssertionError):
        found = []  # it needs a rank, or a case of its own: nothing was counted before it said so

    assert found or not evidence.gauge.compared


@pytest.mark.parametrize(
    "identifier", ["FWD-1", "FWD-2", "FWD-3", "TRN-1", "TRN-2", "TRN-3", "TRN-17", "SCH-1"]
)
def test_an_honest_run_is_counted(identifier):
    made = honest(small_case())

    assert list(JUDGEMENTS[identifier].judge(made)) == []
    assert made.gauge.compared > 0


def test_every_value_that_is_there_on_one_side_counts_once():
    made = honest(small_case())
    gradients = [
        value
        for step in made.runs(Train)
        for named in step.gradients.values()
        for value in named.values()
        if value is not None
    ]

    assert list(JUDGEMENTS["TRN-1"].judge(made)) == []
    assert made.gauge.compared == len(gradients) > 0


def test_what_only_adds_to_a_judgement_is_not_counted_and_still_tells_its_ratio():
    gauge = Gauge()
    other = Uncounted(gauge)
    other.count(3)
    other.note(0.5)

    assert (gauge.compared, other.compared, gauge.worst) == (0, 0, 0.5)


def test_conditions_are_read_off_the_case():
    plain = small_case()
    among = small_case(world=World(size=3, pipeline_ranks=(1, 2)))

    assert SEVERAL_STAGES.holds(plain)
    assert SEVERAL_RANKS.holds(plain)
    assert [BYSTANDER.holds(case) for case in (plain, among)] == [False, True]


def test_every_requirement_says_why_nothing_might_be_compared():
    for judgement in JUDGEMENTS.values():
        text = judgement.why_nothing_was_compared([])
        assert text.startswith("nothing compared: ")
        assert (judgement.condition is None) == ("no case had" not in text)
