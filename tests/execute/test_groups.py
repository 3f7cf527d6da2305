import threading

from pipeconform.execute.groups import Retired


class _Group:
    """Tells in which thread it ends, and takes its time."""

    def __init__(self, ended, gate=None):
        self._ended, self._gate = ended, gate

    def __del__(self):
        if self._gate is not None:
            assert self._gate.wait(timeout=10)
        self._ended.append(threading.current_thread())


def test_a_group_ends_in_another_thread_and_not_before_it_is_released():
    """The caller never waits for a group that it has just retired."""
    ended, gate, retired = [], threading.Event(), Retired()

    retired.add(_Group(ended, gate))
    assert ended == []
    retired.release()  # would not return if the caller ended the group
    gate.set()
    retired.release()

    assert len(ended) == 1
    assert ended[0] is not threading.current_thread()


def test_what_was_released_before_has_ended_when_release_returns():
    """A group that cannot end holds up the case after the next one, where it is seen."""
    ended, retired = [], Retired()

    for count in range(5):
        retired.add(_Group(ended))
        retired.release()
        assert len(ended) >= count

    retired.release()
    assert len(ended) == 5


def test_nothing_to_release_starts_no_thread():
    """A rank without groups runs as many threads as before."""
    before = threading.active_count()

    Retired().release()

    assert threading.active_count() == before
