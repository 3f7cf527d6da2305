"""Forwards are numbered in the order in which they begin, and each thread knows which one it runs."""

import copy
import threading

import pytest

from pipeconform.observe.forwards import Forwards


def test_a_forward_inside_another_has_its_own_number_and_then_the_outer_one_goes_on():
    forwards, seen = Forwards(), [-1]

    with forwards.numbered() as outer:
        with forwards.numbered() as inner:
            seen.append(forwards.call)
        seen.append(forwards.call)
    with forwards.numbered() as later:
        pass
    assert (outer, inner, later) == (0, 1, 2)
    assert [*seen, forwards.call] == [-1, 1, 0, -1]


def test_an_exception_ends_a_forward():
    forwards = Forwards()

    with pytest.raises(ValueError, match="broken"), forwards.numbered():
        raise ValueError("broken")
    assert forwards.call == -1


def test_threads_count_together_and_run_forwards_of_their_own():
    forwards, seen = Forwards(), []

    def other():
        seen.append(forwards.call)
        with forwards.numbered():
            seen.append(forwards.call)

    with forwards.numbered():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert forwards.call == 0
    assert seen == [-1, 1]


def test_a_copied_stage_is_watched_by_the_same_object():
    forwards = Forwards()

    assert copy.deepcopy([forwards])[0] is forwards
