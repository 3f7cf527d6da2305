"""What a failing case may be cut down to accuses nobody: the reference meets its requirement on all of it."""

from __future__ import annotations

import itertools

import pytest

from pipeconform.campaign.corpus import Corpus, drawn
from pipeconform.campaign.describing import describe
from pipeconform.campaign.executor import Executor
from pipeconform.campaign.judging import judge
from pipeconform.campaign.preload import PRELOAD
from pipeconform.case.draw.claimed import reachable
from pipeconform.case.focus import Limits
from pipeconform.case.simpler.candidates import leaps
from pipeconform.case.simpler.scope import Scope
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.ranks.pools import Pools
from pipeconform.spec import requirement

pytestmark = pytest.mark.slow

DRAWN = 4
LEAPS = 3


@pytest.fixture(scope="module")
def executor():
    with Pools(preload=PRELOAD) as pools:
        yield Executor(implementation="reference", description=describe(pools, "reference"), pools=pools)


def _simpler(corpus, judgement):
    """The first leaps of the last case that the requirement is about."""
    case = next(filter(judgement.applies, reversed(drawn(corpus))), None)
    scope = Scope(limits=corpus.limits, claim=corpus.schedule, focus=corpus.focus)

    def allowed(one):
        return judgement.applies(one) and scope.holds(one, origin=case)

    return () if case is None else itertools.islice(leaps(case, allowed), LEAPS)


@pytest.mark.parametrize("identifier", JUDGEMENTS)
def test_the_reference_meets_its_requirements_on_simpler_cases(executor, identifier):
    judgement, capabilities = JUDGEMENTS[identifier], executor.capabilities
    limits, wrong, judged = Limits(capabilities=capabilities, max_ranks=4), [], 0
    # where the requirement is about split backwards, 1F1B has none; where it is about placements, it has one only
    claims = [capabilities.schedule("ZB-H1" if judgement.splits else "1F1B"), *capabilities.schedules]
    claim = next(one for one in claims if judgement.foci(one, capabilities))
    for focus in judgement.foci(claim, capabilities):
        if not reachable(limits, claim, focus):
            continue
        corpus = Corpus(limits=limits, schedule=claim, focus=focus, seed=1, size=DRAWN)
        for case in _simpler(corpus, judgement):
            execution = executor.execute(case, observe=judgement.observe)
            outcomes = judge(requirement(identifier), execution, executor, anew=False)
            wrong += [(one.status, one.finding.message, case) for one in outcomes]
            judged += 1

    assert wrong == []
    assert judged
