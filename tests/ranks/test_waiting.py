"""Who waits for whom is told in a line per rank, and the circle or the missing rank is named."""

from pipeconform.ranks import Died, Raised, Returned, Stuck, VerdictVector
from tests.facts import tells


def stuck(*peers, waits="", **others):
    return Stuck(1.0, why="idle", waits=waits or f"receive from rank {peers[0]}", waits_for=peers, **others)


def test_a_circle_is_told_and_its_lowest_rank_is_the_root():
    vector = VerdictVector((stuck(1), stuck(2, doing="step 0"), stuck(1, waited=1.25)))
    first, second, third, circle = vector.waiting.splitlines()
    assert tells(first, "rank 0", "receive from rank 1")
    assert tells(second, "rank 1", "receive from rank 2", "step 0")
    assert tells(third, "rank 2", "receive from rank 1", "1.2 s")
    assert tells(circle, "circle", "rank 1", "rank 2", "rank 1")
    assert "rank 0" not in circle
    assert vector.first_failure == 1
    assert vector.waiting in vector.explain()


def test_the_shortest_of_several_circles_is_told():
    vector = VerdictVector((stuck(1), stuck(2, 0), stuck(0)))
    assert vector.waiting.endswith("a circle: rank 0 waits for rank 1 waits for rank 0")


def test_a_rank_that_waits_for_itself_is_a_circle():
    assert VerdictVector((stuck(0),)).waiting.endswith("a circle: rank 0 waits for rank 0")


def test_who_waits_for_a_rank_that_ended_is_told_how_it_ended():
    for ended, how in (
        (Returned(1), "has returned"),
        (Died(signal="SIGKILL"), "died (SIGKILL)"),
        (Raised("ValueError", "x"), "raised ValueError"),
    ):
        vector = VerdictVector((stuck(1), stuck(2), ended))
        assert vector.waiting.endswith(f"rank 1 waits for rank 2, which {how}")


def test_who_waits_for_none_that_is_stuck_is_the_root():
    assert VerdictVector((stuck(1), stuck(2), Returned(1))).first_failure == 1
    assert VerdictVector((stuck(1), Stuck(1.0, why="idle"))).first_failure == 1
    assert VerdictVector((stuck(1), stuck(0), Died(signal="SIGKILL"))).first_failure == 2


def test_where_nothing_is_known_nothing_is_told():
    vector = VerdictVector((Stuck(1.0, why="idle"), Returned(1)))
    assert vector.waiting == ""
    assert vector.first_failure == 0


def test_the_line_of_a_rank_says_what_it_waits_for():
    assert "stuck     idle; waits for receive from rank 1" in VerdictVector((stuck(1),)).describe()
