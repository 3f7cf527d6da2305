"""A message is taken apart without losing a word of it."""

import pytest

from pipeconform.bounds.numerics import Mismatch
from pipeconform.ranks.verdict import Died, Raised, Returned, Stuck, VerdictVector
from pipeconform.report.html.message import message_of, verdicts_of


@pytest.fixture
def message(make):
    def read(text, verdicts=""):
        return message_of(make.violation("TRN-1", "GPipe", message=text, verdicts=verdicts))

    return read


def test_a_difference_in_values_becomes_expected_actual_and_how_far_off(message):
    mismatch = Mismatch(
        kind="value",
        index=(0, 1),
        expected="0.4573",
        actual="0.4085",
        ulps=7,
        relative=0.11,
        differing=3,
        total=36,
        worst=2e3,
    )
    read = message(f"the gradient of weight in stage 0 is not the reference's\n{mismatch.describe()}\na hint")

    assert read.headline == "the gradient of weight in stage 0 is not the reference's"
    assert read.lines == ("a hint",)
    assert read.comparison.title == "value differs at [0, 1], the first of 3 of 36"
    assert (read.comparison.expected, read.comparison.actual) == ("0.4573", "0.4085")
    assert read.comparison.notes == (
        ("distance", "7 ulp, 0.11 of the value"),
        ("bound", "exceeded up to 2e+03 times"),
    )


@pytest.mark.parametrize(
    ("expected", "actual", "same"), [("0.45", "0.46", 3), ("1", "1", 1), ("1.5", "1.55", 3), ("nan", "2", 0)]
)
def test_the_first_digit_that_differs_is_found(message, expected, actual, same):
    read = message(f"wrong\nvalue differs\n  expected  {expected}\n  actual    {actual}")

    assert read.comparison.same == same


@pytest.mark.parametrize("kind", ["shape", "dtype", "missing"])
def test_other_kinds_of_mismatches_are_compared_too(message, kind):
    mismatch = Mismatch(kind=kind, expected="Array(float64[2])", actual=None)
    read = message(f"wrong\n{mismatch.describe()}")

    assert (read.comparison.expected, read.comparison.actual) == ("Array(float64[2])", "nothing")


def test_a_message_without_a_comparison_stays_as_it_is(message):
    read = message("the first line\nthe second\n  expected  only one half of it")

    assert (read.headline, read.comparison) == ("the first line", None)
    assert read.lines == ("the second", "  expected  only one half of it")


def test_verdicts_are_told_once_and_stacks_apart(message):
    vector = VerdictVector((Stuck(seconds=2.0, why="no CPU time"), Returned(None)))
    read = message(
        f"no rank makes progress\n{vector.describe()}\nCurrent thread 0x1 (most recent call first):\n"
        '  File "a.py", line 1 in f',
        verdicts=vector.describe(),
    )

    assert (read.headline, read.lines) == ("no rank makes progress", ())
    assert read.stack.splitlines()[-1] == '  File "a.py", line 1 in f'


def test_what_is_too_long_for_a_page_is_counted(message):
    read = message("\n".join(["first", *("x" * 100 for _ in range(500))]))

    assert len(read.lines) + 1 + read.left_out == 501
    assert 0 < read.left_out < 500


def test_control_characters_are_shown(message):
    assert message("red \x1b[31m\x00end\x7f").headline == r"red \x1b[31m\x00end\x7f"


def test_an_empty_message_falls_back_on_the_signature(message):
    assert message("").headline == "output value"


def test_every_kind_of_verdict_is_read_back(make):
    vector = VerdictVector(
        (
            Returned(None),
            Raised("RuntimeError", "no <b>good"),
            Died(signal="SIGKILL", after=0.0),
            Stuck(seconds=1.0, why="waits"),
        )
    )
    read = verdicts_of(make.violation("FWD-1", "GPipe", verdicts=vector.describe()))

    assert [(one.rank, one.word, one.detail) for one in read] == [
        ("0", "returned", ""),
        ("1", "raised", "RuntimeError: no <b>good"),
        ("2", "died", "SIGKILL"),
        ("3", "stuck", "waits"),
    ]
    assert [one.first for one in read].index(True) == vector.first_failure


def test_a_verdict_in_other_words_is_shown_as_it_is(make):
    (read,) = verdicts_of(make.violation("FWD-1", "GPipe", verdicts="all is lost"))

    assert (read.rank, read.detail) == ("", "all is lost")
