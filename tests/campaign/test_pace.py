"""After one hang that used up the time limit, cases of the same schedule get as long as others take, and no longer."""

from __future__ import annotations

import pytest

from pipeconform.campaign.pace import Pace
from pipeconform.ranks.verdict import Died, Raised, Returned, Stuck, VerdictVector

FULL = 60.0  # seconds


def shown(*verdicts) -> VerdictVector:
    return VerdictVector(verdicts)


def pace(*notes, schedule="1F1B") -> Pace:
    made = Pace()
    for vector in notes:
        made.note(vector, schedule=schedule, time_limit=FULL)
    return made


def limit(of, *, schedule="1F1B", compiles=False, time_limit=FULL) -> float:
    return of.limit(time_limit, schedule=schedule, compiles=compiles)


FAST = shown(Returned(None, after=0.1), Returned(None, after=0.2))
SLOW = shown(Returned(None, after=0.1), Returned(None, after=1.5))
EXPIRED = shown(Stuck(seconds=60.1, why="time limit of 60 s"), Returned(None, after=0.1))
PROVED = shown(Stuck(seconds=2.1, why="no rank used CPU time for 2 s"), Returned(None, after=0.1))


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ([], FULL),
        ([FAST], FULL),
        ([EXPIRED], FULL),  # nothing says how long cases take
        ([FAST, PROVED], FULL),
        ([FAST, shown(Died(signal="SIGKILL"), Raised("ValueError", "bad"))], FULL),
        ([FAST, EXPIRED], 10.0),
        ([EXPIRED, SLOW], 30.0),
        ([SLOW, FAST, EXPIRED], 30.0),
        ([shown(Returned(None, after=9.0)), EXPIRED], FULL),
    ],
)
def test_it_is_shorter_only_where_one_expired_and_others_returned(notes, expected):
    assert limit(pace(*notes)) == expected


def test_other_schedules_and_compilers_keep_theirs_and_a_short_one_stays_short():
    made = pace(FAST, EXPIRED)
    assert limit(made, schedule="GPipe") == FULL
    assert limit(made, compiles=True) == FULL
    assert limit(made, time_limit=5.0) == 5.0
    assert limit(pace(FAST, EXPIRED, schedule="GPipe")) == FULL
