"""An exception that was seen in one case is recognised in a later one, also as the cause of another."""

import pytest

from pipeconform.execute import mistaken


def raised(error, *, cause=None):
    try:
        raise error from cause
    except Exception as caught:
        return caught


def failed(error):
    return mistaken.failed_by(error, step=0)


@pytest.fixture(autouse=True)
def first_case():
    mistaken.begin()


def test_exceptions_of_the_same_case_are_its_own():
    error = raised(ValueError("bad"))

    assert not failed(error).earlier
    assert not failed(error).earlier


def test_an_exception_of_an_earlier_case_is_recognised():
    kept, other = raised(ValueError("bad")), raised(ValueError("bad"))
    failed(kept)
    mistaken.begin()

    assert failed(kept).earlier
    assert not failed(other).earlier


@pytest.mark.parametrize("error", [ValueError("bad"), type("OfAnEngine", (Exception,), {})("bad")])
def test_a_new_exception_because_of_an_earlier_one_is_recognised(error):
    failed(raised(error))
    mistaken.begin()

    assert failed(raised(RuntimeError("closed"), cause=error)).earlier


def test_the_cause_of_what_was_seen_is_recognised():
    cause = raised(ValueError("bad"))
    failed(raised(RuntimeError("worse"), cause=cause))
    mistaken.begin()

    assert failed(cause).earlier
