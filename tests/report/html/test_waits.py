"""The picture of a hang shows every rank, who waits for whom, and which of it is the circle."""

from pipeconform.ranks import Died, Returned, Stuck, VerdictVector
from pipeconform.report.html.waits import waits_view
from tests.report.html.conftest import parse


def stuck(*peers, **others):
    return Stuck(
        2.0, why="idle", waits=f"receive from rank {peers[0]}", waits_for=peers, stack="in <here>", **others
    )


def view(*verdicts):
    return waits_view(VerdictVector(verdicts).places)


def arrows(found):
    """Classes of the arrows without their heads."""
    lines = parse(found.picture).one("svg").all("polyline", cls="waits-for")
    return ["bad" if line.has(cls="bad") else "" for line in lines if not line.has(cls="head")]


def test_every_rank_has_a_box_and_every_wait_an_arrow_and_the_circle_is_told_apart():
    found = view(stuck(1), stuck(2), stuck(1), Returned(None))

    words = [text.text for text in parse(found.picture).all("text")]
    assert [word for word in words if word.startswith("rank")] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert words.count("∞ stuck") == 3
    assert arrows(found) == ["", "bad", "bad"]
    assert len(parse(found.picture).all("rect", cls="bad")) == 2
    assert found.lines[-1] == "a circle: rank 1 waits for rank 2 waits for rank 1"


def test_the_stack_of_every_stuck_rank_is_there():
    found = view(stuck(1), Died(signal="SIGKILL"))

    assert found.stacks == (("rank 0", "in <here>"),)
    assert found.lines[-1] == "rank 0 waits for rank 1, which died (SIGKILL)"


def test_what_waits_for_all_others_has_only_the_arrow_of_the_circle():
    found = view(stuck(1, 2, 3, 4), stuck(0), *(Returned(None),) * 3)

    assert arrows(found) == ["bad", "bad"]


def test_nothing_is_drawn_where_nothing_is_known():
    assert view(Stuck(1.0, why="idle"), Returned(None)) is None
    assert view(Returned(None)) is None
    assert waits_view(()) is None


def test_many_ranks_are_told_in_words_only():
    found = view(*(stuck((rank + 1) % 40) for rank in range(40)))

    assert found.picture is None
    assert len(found.lines) == 41
