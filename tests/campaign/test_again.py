"""Stored cases are judged again: once for all requirements that can share an execution, and compared with what was."""

import pytest

from pipeconform.campaign.again import Sought, judge_again, localised, verdict
from pipeconform.campaign.rejudge import Again, Question
from pipeconform.errors import UsageError
from pipeconform.judge.evidence import Finding
from pipeconform.judge.outcome import Outcome, Status
from pipeconform.spec import requirement
from tests.case.examples import small_case

CASE = small_case()
ROWS = tuple(map(requirement, ("FWD-1", "ERR-15", "TRN-1")))
WRONG = Outcome(Status.FAILED, Finding(kind="output value", message="one\ntwo", step=1, rank=0))
OTHER = Outcome(Status.HUNG, Finding(kind="hang", message="three"))


class Runner:
    """Executes nothing; ERR-15 is judged on an execution of its own."""

    implementation, kind = "it:It", "pipeline"

    def __init__(self, *, owns=True):
        self.owns, self.executed, self.judged_rows, self.asked = owns, [], [], []

    def own(self, case):
        return case if self.owns else None

    def apart(self, rows):
        return ((rows[1],), (rows[2], rows[0]))

    def execute(self, case, rows, *, hung=False):
        self.executed.append((case, [row.id for row in rows], hung))
        return len(self.executed)

    def judged(self, row, case, execution):
        self.judged_rows.append((row.id, execution))
        return type("Judged", (), {"outcomes": (row.id,)})

    def localised(self, case, outcomes):
        self.asked.append((case, outcomes))
        return "where"


@pytest.mark.parametrize("hung", [True, False])
def test_a_case_is_executed_once_for_those_that_can_share_it_and_told_in_the_order_asked(hung):
    runner = Runner()
    found = judge_again(CASE, ROWS, runner, hung=hung)

    assert list(found.items()) == [(row.id, (row.id,)) for row in ROWS]
    assert runner.executed == [(CASE, ["ERR-15"], hung), (CASE, ["TRN-1", "FWD-1"], hung)]
    assert runner.judged_rows == [("ERR-15", 1), ("TRN-1", 2), ("FWD-1", 2)]


def test_a_case_of_another_kind_is_refused():
    with pytest.raises(UsageError, match="it:It is a pipeline, but a case of FWD-1, ERR-15, TRN-1 is not"):
        judge_again(CASE, ROWS, Runner(owns=False))


def test_all_that_was_found_is_looked_for_together():
    runner = Runner()

    assert localised(CASE, {"FWD-1": (WRONG, OTHER), "TRN-1": (WRONG,)}, runner) == "where"
    assert runner.asked == [(CASE, [WRONG, OTHER, WRONG])]


def test_a_case_that_shows_nothing_is_met():
    found = verdict({"FWD-1": (), "TRN-1": ()}, None)

    assert (found.kind, found.requirements, found.text) == ("met", ("FWD-1", "TRN-1"), "")
    assert verdict({"FWD-1": ()}, SOUGHT).kind == "met"


SOUGHT = Sought(requirement="FWD-1", status="failed", signature="output value")


def test_where_nothing_was_sought_everything_is_told_alike_ones_once():
    found = verdict({"FWD-1": (WRONG, OTHER, WRONG), "TRN-1": (WRONG,)}, None)

    assert found.kind == "violated"
    assert found.text.splitlines() == [
        "FWD-1 failed: output value (step 1, rank 0)",
        "  one",
        "  two",
        "  … and 1 more like it",
        "FWD-1 hung: hang",
        "  three",
        "TRN-1 failed: output value (step 1, rank 0)",
        "  one",
        "  two",
    ]


@pytest.mark.parametrize(
    ("outcomes", "kind", "first"),
    [
        ({"FWD-1": (OTHER, WRONG)}, "reproduced", "FWD-1 failed: output value (step 1, rank 0)"),
        ({"FWD-1": (OTHER,)}, "another", "FWD-1 hung: hang"),
        ({"TRN-1": (WRONG,), "FWD-1": ()}, "another", "TRN-1 failed: output value (step 1, rank 0)"),
    ],
)
def test_what_was_sought_is_told_alone_and_anything_else_is_another(outcomes, kind, first):
    found = verdict(outcomes, SOUGHT)

    assert (found.kind, found.requirements) == (kind, tuple(outcomes))
    assert found.text.splitlines()[0] == first
    assert "hang" not in found.text or kind == "another"


def test_a_timeline_is_drawn_below_what_is_told():
    drawn = Outcome(
        Status.FAILED,
        WRONG.finding,
        timeline=(("0F0", "0B0"), ("1F0", "1B0")),
        first_wrong=(1, 0),
    )
    lines = verdict({"FWD-1": (drawn,)}, None).text.splitlines()

    assert lines[2] == "  two"
    assert any("rank 1" in line for line in lines[3:])
    assert all(line.startswith("  ") for line in lines[3:])


def test_executions_that_showed_a_violation_are_counted():
    question = Question(requirement="FWD-1", variant="default", case=CASE)
    one, two = ("failed", "output value"), ("failed", "loss value")
    again = Again(question=question, shown=(frozenset({one, two}), frozenset(), frozenset({two})))

    assert [again.times(*key) for key in (one, two, ("hung", "output value"))] == [1, 2, 0]
