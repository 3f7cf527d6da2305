"""When a watch gives up: a clock that the test moves, and eyes that see what the test says."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from pipeconform.ranks import watch
from pipeconform.ranks.evidence import Share
from pipeconform.ranks.watch import Limits, LocalEyes, Watch
from tests.facts import tells

LIMITS = Limits(time=100.0, idle=0.5, idle_after_failure=0.25)
"""An eighth of each, which is how often is looked, and all other times are exact in binary."""


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Eyes:
    moving: bool = False
    held: float = 0.0
    asked: list[list[int]] = field(default_factory=list)

    def progress(self, ranks):
        self.asked.append(list(ranks))
        return self.moving

    def stopped(self, rank):
        return False

    def withheld(self, ranks):
        self.asked.append(list(ranks))
        return self.held


class Watched:
    """A watch whose task starts now."""

    def __init__(self, limits=LIMITS):
        self.clock, self.eyes = Clock(), Eyes()
        self.watch = Watch(limits, started=self.clock.now, eyes=self.eyes, clock=self.clock)
        self.seen = {"waiting": [0, 1], "answering": False, "moved": 0, "failure": None}

    def after(self, seconds, **changed):
        """What the watch says after some seconds in which nothing looked at it."""
        self.clock.now += seconds
        self.seen |= changed
        waiting = self.seen["waiting"]
        rest = {name: value for name, value in self.seen.items() if name != "waiting"}
        return self.watch.check(waiting, **rest)

    def looking(self, seconds, **changed):
        """The same, of a pool that looks as often as it should."""
        end, said = self.clock.now + seconds, None
        while said is None and self.clock.now < end - 1e-9:
            said = self.after(min(self.watch.interval, end - self.clock.now), **changed)
        return said


def test_time_in_which_others_have_the_processors_does_not_count():
    watched = Watched()
    watched.eyes.moving, watched.eyes.held = True, 50.0

    assert watched.after(149.75) is None
    assert watched.eyes.asked[-2] == [0, 1]
    assert watched.after(0.25) == "time limit of 100 s"


def test_however_busy_the_machine_five_times_the_limit_ends_a_task():
    watched = Watched()
    watched.eyes.moving, watched.eyes.held = True, 1e6

    assert watched.after(499.75) is None
    assert watched.after(0.25) == "time limit of 100 s"


def test_ranks_that_rest_are_given_up_after_the_idle_limit():
    watched = Watched()

    assert watched.looking(0.5) is None  # the first look has nothing to compare with
    assert tells(watched.looking(0.1), "no rank", "CPU time", "0.5 s")
    assert watched.watch.idle == 0.5


def test_ranks_that_progress_are_given_up_at_the_time_limit():
    watched = Watched()
    watched.eyes.moving = True

    assert watched.looking(99.5) is None
    assert watched.watch.idle == 0.0
    assert watched.looking(1.0) == "time limit of 100 s"
    assert watched.eyes.asked[-1] == [0, 1]


def test_the_time_limit_does_not_cut_an_answer_off():
    watched = Watched()
    watched.eyes.moving = True

    assert watched.after(100.0, answering=True) is None
    assert watched.after(0.0, answering=False) == "time limit of 100 s"


def test_exactly_the_time_limit_is_late():
    watched = Watched()

    assert watched.after(99.75) is None
    assert watched.after(0.25) == "time limit of 100 s"


@pytest.mark.parametrize("news", [{"moved": 5}, {"waiting": [1]}, {"failure": "rank 0 raised"}])
def test_an_answer_bytes_or_a_failure_are_progress(news):
    watched = Watched()
    watched.looking(0.4375)
    assert watched.watch.idle == 0.375

    assert watched.after(0.0625, **news) is None

    assert watched.watch.idle == 0.0
    assert watched.after(0.0625) is None
    assert watched.watch.idle == 0.0625


def test_after_a_failure_patience_is_short():
    watched = Watched()
    watched.looking(0.25)
    watched.after(0.0625, failure="rank 1 died")

    assert watched.looking(0.21875) is None
    assert tells(watched.looking(0.2), "waited 0.25 s", "rank 1 died")


def test_a_controller_that_was_held_up_has_seen_little_of_that_time():
    watched = Watched()
    watched.after(0.0625)

    assert watched.after(50.0) is None

    assert watched.watch.idle == 0.125  # two intervals


def test_two_looks_need_some_time_between_them():
    watched = Watched()
    watched.after(0.0625)
    looks = len(watched.eyes.asked)

    assert watched.after(0.03) is None
    assert len(watched.eyes.asked) == looks
    watched.after(0.01)
    assert len(watched.eyes.asked) == looks + 1


def test_half_an_interval_is_time_enough_between_two_looks():
    watched = Watched()
    watched.after(0.0625)
    looks = len(watched.eyes.asked)

    watched.after(0.03125)
    assert len(watched.eyes.asked) == looks + 1


def test_time_in_which_a_rank_waits_for_its_user_does_not_count():
    watched = Watched()
    watched.looking(0.375)
    watched.clock.now += 500.0

    watched.watch.hold()

    assert watched.watch.idle == 0.0
    assert watched.after(99.0) is None
    assert watched.after(0.5) is None
    assert watched.after(0.125) == "time limit of 100 s"


def test_looks_become_frequent_when_patience_is_short_and_the_limit_near():
    assert Watched(Limits(time=100.0)).watch.interval == 0.1
    assert Watched().watch.interval == 0.0625
    failed = Watched()
    failed.after(0.0625, failure="rank 0 raised")
    assert failed.watch.interval == 0.03125
    near = Watched()
    near.clock.now += 99.96875
    assert near.watch.interval == 0.03125
    near.clock.now += 0.03075
    assert near.watch.interval == 0.001
    over = Watched()
    for seconds in (100.0, 1.0):
        over.clock.now += seconds
        assert over.watch.interval == 0.0625  # an answer is on its way


# ------------------------------------------------------------------------------- looks at processes


def test_what_was_withheld_counts_from_the_first_look(shown, monkeypatch):
    shares = {10: Share(1.0, 70.0), 11: Share(1.0, 80.0), 12: None}
    monkeypatch.setattr(watch, "share", lambda pid: shares[pid])
    eyes = LocalEyes(PIDS)
    assert eyes.withheld([0, 1, 2]) == 0.0

    eyes.progress([0, 1, 2])
    shares[10], shares[11] = Share(2.0, 75.0), Share(1.0, 81.0)

    assert eyes.withheld([0, 1, 2]) == 5.0
    assert eyes.withheld([1, 2]) == 1.0
    shares[10] = None  # it has ended
    assert eyes.withheld([0, 1, 2]) == 1.0


@pytest.mark.parametrize("alive", [10, 11, 12])
def test_ranks_share_the_cores_that_any_of_them_that_lives_may_use(shown, monkeypatch, alive):
    """Three ranks that had two cores for a second were given half of what they used."""

    def affinity(pid):
        if pid != alive:
            raise ProcessLookupError
        return {0, 1}

    monkeypatch.setattr(watch.os, "sched_getaffinity", affinity, raising=False)
    monkeypatch.setattr(watch.os, "cpu_count", lambda: 64)
    shares = dict.fromkeys((10, 11, 12), Share(0.0, 0.0))
    monkeypatch.setattr(watch, "share", lambda pid: shares[pid])
    eyes = LocalEyes(PIDS)
    eyes.progress([0, 1, 2])
    shares.update({10: Share(2.0, 6.0), 11: Share(3.0, 5.0), 12: Share(3.0, 5.0)})

    assert eyes.withheld([0, 1, 2]) == 8.0 - (2.0 + 3.0 + 3.0) / 2


@pytest.mark.parametrize(("counted", "cores"), [(2, 2), (None, 1)])
def test_where_no_rank_tells_its_cores_those_of_the_machine_count(shown, monkeypatch, counted, cores):
    def affinity(pid):
        raise ProcessLookupError

    monkeypatch.setattr(watch.os, "sched_getaffinity", affinity, raising=False)
    monkeypatch.setattr(watch.os, "cpu_count", lambda: counted)
    shares = {10: Share(0.0, 0.0), 11: Share(0.0, 0.0), 12: None}
    monkeypatch.setattr(watch, "share", lambda pid: shares[pid])
    eyes = LocalEyes(PIDS)
    eyes.progress([0, 1, 2])
    shares.update({10: Share(2.0, 6.0), 11: Share(2.0, 6.0)})

    assert eyes.withheld([0, 1, 2]) == 8.0 - 4.0 / cores


@pytest.fixture
def shown(monkeypatch):
    """What is seen of a process by its id, as a number that grows when it progresses; None for nothing."""
    counts = {10: 0, 11: 0, 12: 0}
    looked = []

    def look(pid):
        looked.append(pid)
        count = counts[pid]
        return None if count is None else SimpleNamespace(count=count, stopped=count == -1)

    monkeypatch.setattr(watch, "look", look)
    monkeypatch.setattr(watch, "progressed", lambda before, *, after: after.count > before.count)
    return SimpleNamespace(counts=counts, looked=looked)


PIDS = {0: 10, 1: 11, 2: 12}


def test_a_first_look_counts_as_progress_and_a_second_compares(shown):
    eyes = LocalEyes(PIDS)

    assert [eyes.progress([0, 1]) for _ in range(2)] == [True, False]
    assert eyes.progress([0, 1, 2])  # the third is new
    shown.counts[11] += 1
    assert eyes.progress([0, 1])
    assert not eyes.progress([0, 1])


def test_whoever_progressed_last_is_looked_at_first_and_alone(shown):
    eyes = LocalEyes(PIDS)
    eyes.progress([0, 1, 2])
    shown.counts[12] += 1
    eyes.progress([0, 1, 2])
    shown.looked.clear()
    shown.counts[12] += 1

    assert eyes.progress([0, 1, 2])
    assert shown.looked == [12]
    assert not eyes.progress([0, 1, 2])
    assert shown.looked == [12, 12, 10, 11]


def test_what_cannot_be_seen_counts_as_progress(shown):
    eyes = LocalEyes(PIDS)
    eyes.progress([0, 1])
    shown.counts[11] = None

    assert [eyes.progress([0, 1]) for _ in range(2)] == [True, True]


def test_a_process_is_held_by_a_signal_if_it_was_when_last_looked_at(shown):
    eyes = LocalEyes(PIDS)
    assert not eyes.stopped(0)
    shown.counts[10] = -1
    eyes.progress([0, 1])

    assert eyes.stopped(0)
    assert not eyes.stopped(1)
