"""Stored cases are executed again so often; the campaign answers what a test says."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from pipeconform.campaign import rejudge as module
from pipeconform.campaign.options import Options
from pipeconform.campaign.rejudge import Question, rejudge
from tests.campaign.acted_cells import ActedRunner, case_of, wrong

OPTIONS = Options(implementation="torch")


@pytest.fixture
def campaigns(monkeypatch):
    """The options of the campaigns that were started, and their runner by variant."""
    made = SimpleNamespace(started=[], runners={})

    @contextmanager
    def campaign_of(options):
        made.started.append(options)
        yield SimpleNamespace(runner=made.runners.__getitem__)

    monkeypatch.setattr(module, "campaign_of", campaign_of)
    return made


def test_without_questions_nothing_is_started(campaigns):
    assert rejudge([], options=OPTIONS) == ()
    assert campaigns.started == []


def test_each_case_is_executed_so_often_in_its_variant_and_by_its_requirement(campaigns):
    steady = ActedRunner(lambda seed, nth: (wrong(), wrong("output value")))
    flaky = ActedRunner(lambda seed, nth: (wrong(),) if nth == 2 else ())
    campaigns.runners = {"default": steady, "strict": flaky}
    questions = [
        Question(requirement="TRN-4", variant="default", case=case_of(1)),
        Question(requirement="TRN-4", variant="strict", case=case_of(2), hung=True),
    ]
    first, second = rejudge(iter(questions), options=OPTIONS, times=3)

    assert campaigns.started == [OPTIONS]
    assert [first.question, second.question] == questions
    assert first.shown == (frozenset({("failed", "gradient value"), ("failed", "output value")}),) * 3
    assert (second.times("failed", "gradient value"), second.times("failed", "output value")) == (1, 0)
    assert (steady.executed, flaky.executed) == (
        [(1, ("TRN-4",), False)] * 3,
        [(2, ("TRN-4",), True)] * 3,
    )
