"""Which two claimed things cases had: of the drawn cases at full all that are possible, and how runs are counted."""

import msgspec
import pytest
from pipeconform.reference_impl.adapter import ReferenceAdapter

from pipeconform.adapters.torch_pipelining import TorchPipelining
from pipeconform.campaign.pipeline import PipelineTarget
from pipeconform.campaign.together import meetings, merged
from pipeconform.case.focus import Focus
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.report.result import Together
from pipeconform.spec import profile, requirement

POSSIBLE = [("A", "x", "y"), ("B", "x", "y"), ("B", "x", "z"), ("B", "2", "1", "m < p", "none")]


def target(adapter, name):
    return PipelineTarget.of(adapter().describe(), profile=profile(name), ranks=(1, 4), seed=0)


def reached(target, schedules):
    """The pairs in the cases that are drawn for the requirements about two things, under the first schedules."""
    claims = [claim for claim in target.claims.schedules if claim.trains][:schedules]
    cases = [
        case
        for claim in claims
        for name, judgement in JUDGEMENTS.items()
        if any(focus in judgement.about for focus in TOGETHER)
        for corpus in target.corpora(requirement(name), claim)
        for case in corpus.drawn()
    ]
    possible = target.reachable(claim.name for claim in claims)
    return meetings((point for case in cases for point in target.points(case)), possible)


TOGETHER = [focus for focus in Focus if focus.value.startswith("two things at once")]


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [TorchPipelining, ReferenceAdapter])
def test_every_pair_that_is_possible_is_drawn_at_full(adapter):
    pairs = reached(target(adapter, "full"), 1)

    assert len(pairs) > 20
    assert [one.of for one in pairs if one.not_under] == []


def test_a_small_profile_draws_as_many_pairs_as_cases_and_names_the_others():
    small = target(TorchPipelining, "smoke")
    pairs = reached(small, 2)

    assert sum(len(one.under) for one in pairs) >= 2 * small.profile.corpus
    assert any(one.under for one in pairs)
    assert any(one.not_under for one in pairs)


def test_the_number_of_examples_that_is_asked_for_holds_at_full():
    full = msgspec.structs.replace(profile("full"), every_member=False, corpus=3)
    (corpus, *_) = target(TorchPipelining, "full").corpora(
        requirement("TRN-22"), TorchPipelining().describe().capabilities.schedules[1]
    )
    (few, *_) = PipelineTarget.of(TorchPipelining().describe(), profile=full, ranks=(1, 4), seed=0).corpora(
        requirement("TRN-22"), TorchPipelining().describe().capabilities.schedules[1]
    )

    assert corpus.size >= 60
    assert few.size == 3


def test_a_pair_names_the_schedules_with_and_without_it():
    assert meetings([("B", "x", "y")], POSSIBLE) == (
        Together(of=("x", "y"), under=("B",), not_under=("A",)),
        Together(of=("x", "z"), not_under=("B",)),
    )


def test_what_one_of_several_runs_reached_all_of_them_did():
    one, other = meetings([("B", "x", "y")], POSSIBLE), meetings([("A", "x", "y")], POSSIBLE[:1])

    assert merged([*one, *other]) == meetings([("A", "x", "y"), ("B", "x", "y")], POSSIBLE)
