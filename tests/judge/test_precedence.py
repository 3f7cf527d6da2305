"""Which requirement is accused where several see one defect."""

import itertools

import pytest

from pipeconform.judge.finding import Finding
from pipeconform.judge.outcome import Outcome, Status
from pipeconform.judge.precedence import EARLIER, earlier_than, explains, fact_of
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.schedule.violation import Rule
from pipeconform.spec.precedence import BEFORE_ALL, PRECEDENCE


def shown(kind, status=Status.FAILED):
    return Outcome(status, Finding(kind=kind, message=""))


def test_every_name_is_a_requirement_about_pipelines():
    named = {*PRECEDENCE, *EARLIER, *itertools.chain.from_iterable(EARLIER.values())}

    assert named <= JUDGEMENTS.keys()


def test_no_requirement_comes_before_itself_by_way_of_others():
    """Otherwise two requirements would block each other, and none would be accused.

    What explains others by its own fact alone cannot close a circle: by that fact, nothing explains it.
    """

    def before(name, seen=()):
        assert name not in seen, (*seen, name)
        for other in EARLIER.get(name, ()):
            if other not in BEFORE_ALL:
                before(other, (*seen, name))

    for name in EARLIER:
        before(name)
        assert not {*EARLIER[name]} & {one for one in PRECEDENCE if name in PRECEDENCE and one > name}


def test_basic_requirements_come_before_all_others_and_in_one_order():
    assert earlier_than(PRECEDENCE[0]) == BEFORE_ALL
    assert earlier_than("TRN-1") == (*BEFORE_ALL, *PRECEDENCE[: PRECEDENCE.index("TRN-1")])
    assert earlier_than("SCH-4") == (*BEFORE_ALL, "SCH-8", "SCH-5", *PRECEDENCE)
    assert earlier_than("COM-4") == (*BEFORE_ALL, *PRECEDENCE)
    assert earlier_than("SCH-7") == ("ERR-11", *PRECEDENCE)


def test_placement_explains_everything_by_itself_and_nothing_by_anything_else():
    misplaced, hung = shown("stage on another rank"), shown("hang", Status.HUNG)

    assert explains(misplaced, hung, of="SCH-7")
    assert not explains(hung, hung, of="SCH-7")
    assert explains(hung, hung, of="FWD-1")


def test_that_nothing_works_after_an_error_is_one_requirements_business():
    broken, hung = shown("after an error: raised RuntimeError", Status.ERROR), shown("hang", Status.HUNG)

    assert explains(broken, broken, of="ERR-11")
    assert not explains(broken, broken, of="ERR-1")  # two that see it would block each other
    assert not explains(hung, hung, of="ERR-11")
    assert not explains(broken, hung, of="ERR-11")


@pytest.mark.parametrize(
    ("cause", "effect"),
    [
        (shown("scale"), shown("gradient value")),
        (shown("output value"), shown("gradient missing")),
        (shown("output order"), shown("loss value")),
        (shown("gradient value"), shown("parameter value")),
        (shown("gradient value"), shown("norm")),
        (shown("parameter value"), shown("output value")),
        (shown("F: too many"), shown("not the named order")),
        (shown("declared and executed differ"), shown("declared table is incomplete")),
        (shown(f"declared table: {Rule.DEADLOCK.value}"), shown("declared table cannot be run")),
        (shown("several F"), shown("buffer value")),
        (shown("no W"), shown("not the named order")),
        (shown("stage on another rank"), shown("no output")),
        (shown("stage on another rank"), shown("hang", Status.HUNG)),
        (shown("hang", Status.HUNG), shown("died: SIGABRT", Status.CRASHED)),
        (shown("raised KeyError: 'a'", Status.ERROR), shown("hang", Status.HUNG)),
    ],
)
def test_a_fact_explains_itself_and_what_follows_from_it(cause, effect):
    assert explains(cause, effect)


@pytest.mark.parametrize(
    ("cause", "effect"),
    [
        (shown("gradient value"), shown("output value")),
        (shown("loss value"), shown("gradient value")),
        (shown("not the named order"), shown("F: too many")),
        (shown("output value"), shown("hang", Status.HUNG)),
        (shown("hang", Status.HUNG), shown("output value")),
        (shown("declared and executed differ"), shown("bubble too large")),
        (shown("hooks ran more often"), shown("hooks ran less often")),
        (shown("buffer value"), shown("several F")),
        (shown("no output"), shown("stage on another rank")),
    ],
)
def test_nothing_else_is_explained(cause, effect):
    assert not explains(cause, effect)


def test_a_control_that_does_not_end_explains_whatever_its_case_shows():
    hung, wrong = shown("hang", Status.HUNG), shown("output value")

    assert explains(hung, wrong, in_control=True)
    assert not explains(wrong, hung, in_control=True)
    assert not explains(hung, wrong, of="SCH-7", in_control=True)


def test_the_longest_beginning_names_the_fact():
    assert fact_of(shown("input gradient value")) == "input gradients"
    assert fact_of(shown("gradient value")) == "gradients"
    assert fact_of(shown("no loss")) == "losses"
    assert fact_of(shown("something new")) == "something new"
