"""The page of gate trials, and the mistakes that are planted in torch."""

import pytest

from benchmarks.gate_trials.page import page
from benchmarks.gate_trials.planted import PLANTED
from benchmarks.gate_trials.running import Trial, busy
from pipeconform.adapters.torch_pipelining import TorchPipelining


def trial(kind="unchanged", *, name="quiet-1", code=0, said=(), beside=0, seconds=60.0, load=None):
    return Trial(
        kind=kind,
        name=name,
        busy=beside,
        began="2026-01-02T03:04:05+00:00",
        seconds=seconds,
        code=code,
        said=said,
        load=load,
    )


def test_false_alarms_are_counted_by_load():
    text = page(
        [
            trial("base", name="1"),
            trial(),
            trial(name="quiet-2", code=1, said=("TRN-4: <odd>",), seconds=70.0),
            trial(name="beside-8-1", beside=8, seconds=300.0),
            trial(name="loaded-1", load=12.4, seconds=200.0),
            trial(name="loaded-2", load=31.0, seconds=250.0),
        ]
    )

    assert "1 run in all" in text
    assert "| nothing, or one other such run | 2 | 1 | 65 and 70 |" in text
    assert "| other work: a mean load of 12 to 31, its own included | 2 | 0 | 225 and 250 |" in text
    assert "| busy processes: 8 | 1 | 0 | 300 and 300 |" in text
    assert "- quiet-2: exit code 1; TRN-4: &lt;odd>" in text


def test_a_planted_mistake_that_the_gate_does_not_see_is_shown_as_that():
    first, second = PLANTED[:2]
    text = page(
        [
            trial("planted", name=first.__name__, code=1, said=("a", "b", "c", "d")),
            trial("planted", name=second.__name__),
        ]
    )

    assert f"| {first.__doc__} | {first.schedule} | 1 | a; b; c; and 1 more |" in text
    assert f"| {second.__doc__} | {second.schedule} | 0 | **nothing** |" in text


def test_a_page_of_nothing_says_so():
    assert "Nothing has run yet." in page([])


@pytest.mark.parametrize("planted", PLANTED, ids=lambda one: one.__name__)
def test_every_planted_mistake_is_torch_but_for_one_schedule(planted):
    assert planted.__doc__
    claims = planted().describe().capabilities
    assert claims == TorchPipelining().describe().capabilities
    assert claims.schedule(planted.schedule) is not None


def test_busy_processes_end_with_the_trial():
    with busy(2) as running:
        assert [one.poll() for one in running] == [None, None]
    assert all(one.poll() is not None for one in running)
