"""What two violations are compared by, taken from their texts."""

import pytest

from pipeconform.report.causes.traits import factor_words, traits_of


@pytest.mark.parametrize(
    ("ratio", "m", "p", "expected"),
    [
        ("2", 2, 5, "m"),
        ("0.25", 4, 3, "1/m"),
        ("0.111111", 3, 2, "1/m^2"),
        ("125", 5, 2, "m^3"),
        ("0.333333", 2, 3, "1/p"),
        ("7", 2, 3, "7"),
        ("-1", 2, 3, "-1"),
        ("1e-05", 2, 3, "1/1e+05"),
        ("1e-320", 2, 3, "1e-320"),
        ("0", 2, 3, "0"),
        ("1e999", 2, 3, "inf"),
    ],
)
def test_a_ratio_is_a_function_of_the_case_if_it_can_be(make, ratio, m, p, expected):
    message = (
        f"the gradient is not the reference's\nall of stage 0's values are {ratio} times the reference's"
    )
    violation = make.violation("TRN-1", "GPipe", make.case(p=p, m=m), message=message)

    assert factor_words(traits_of(violation).factor) == expected


@pytest.mark.parametrize(
    "message", ["it is many times the reference's", "2 times larger", "1e times the reference's"]
)
def test_no_ratio_is_read_where_there_is_none(make, message):
    assert traits_of(make.violation("TRN-1", "GPipe", message=message)).factor == frozenset()


def test_the_place_of_an_error_is_the_innermost_frame_of_the_rank_that_failed_first(make):
    """Other ranks raise echoes of it elsewhere; their chain may come first."""
    message = (
        "rank 1 raised ValueError: no\n"
        "ranks 0, 2 raised at\n  engine/run.py, line 3, in step\n    wait()\n"
        "rank 1 raised at\n  engine/run.py, line 4, in step\n    go()\n"
        "  engine/stage.py, line 9, in forward\n    raise\n"
        "rank 1 printed\n  other.py, line 5, in nothing\n"
    )
    verdicts = (
        "rank 0  raised    RuntimeError: gone\n"
        "rank 1  raised    ValueError: no  <- first failure\n"
        "rank 2  raised    RuntimeError: gone"
    )
    violation = make.violation(
        "TRN-1", "GPipe", status="error", signature="raised", message=message, verdicts=verdicts
    )

    assert traits_of(violation).place == "engine/stage.py: forward"


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (
            "rank 0  returned\nrank 1  died      SIGSEGV in stage.py:7 send  <- first failure",
            "stage.py: send",
        ),
        ("rank 0  died      SIGABRT; last output: in x.py:3 y  <- first failure", ""),
        ("", ""),
    ],
)
def test_the_place_of_a_death_is_the_frame_that_the_process_left(make, verdicts, expected):
    violation = make.violation("TRN-1", "GPipe", status="crashed", signature="died", verdicts=verdicts)

    assert traits_of(violation).place == expected
