import itertools
import json
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import strategies as st

from pipeconform.adapter import BoundaryClaim, Capabilities, ScheduleClaim
from pipeconform.campaign.corpus import Corpus, drawn
from pipeconform.case.case import Train, Zero
from pipeconform.case.draw import strategies
from pipeconform.case.draw.claimed import is_claimed, reachable
from pipeconform.case.draw.registry import MISTAKEN
from pipeconform.case.draw.strategies import cases
from pipeconform.case.draw.traits import traits
from pipeconform.case.focus import Focus, Limits
from pipeconform.judge.registry import JUDGEMENTS
from tests.case.examples import EVERYTHING

LIMITS = Limits(capabilities=EVERYTHING)
CLAIMED = [(s, f) for s in EVERYTHING.schedules for f in Focus if is_claimed(f, s, EVERYTHING)]


def _corpus(schedule, focus, size=25, limits=LIMITS, seed=0):
    return drawn(Corpus(limits=limits, schedule=schedule, focus=focus, seed=seed, size=size))


@pytest.mark.parametrize(("schedule", "focus"), CLAIMED, ids=lambda value: getattr(value, "name", str(value)))
def test_every_case_of_a_focus_runs_twice_and_is_judged_by_a_requirement_about_it(schedule, focus) -> None:
    about = [judgement for judgement in JUDGEMENTS.values() if focus in judgement.foci(schedule, EVERYTHING)]

    assert about
    for case in _corpus(schedule, focus):
        assert any(judgement.applies(case) for judgement in about), (traits(case), case)
        assert len(case.runs) >= 2 or case.is_mistaken  # where the first run is made wrong, there is no other


@pytest.mark.parametrize("identifier", JUDGEMENTS)
def test_every_requirement_has_examples_in_the_smallest_corpus(identifier) -> None:
    judgement = JUDGEMENTS[identifier]
    served = 0
    for schedule in EVERYTHING.schedules:
        for focus in judgement.foci(schedule, EVERYTHING):
            found = [judgement.applies(case) for case in _corpus(schedule, focus, size=4, seed=3)]
            served += sum(found)

    assert served >= 4


def test_tables_that_are_known_are_drawn_from_as_if_they_were_new(monkeypatch) -> None:
    """Hypothesis repeats parts of earlier cases, and finds them by what it takes for the same table."""

    def anew():
        drawn.cache_clear()
        return [_corpus(*pair) for pair in CLAIMED[::9]]

    known = anew()
    monkeypatch.setattr(strategies, "picking", lambda draw: lambda table: draw(st.sampled_from(table)))

    assert anew() == known


def test_every_case_about_uneven_batches_has_one() -> None:
    """Also the smallest of all, which a small corpus begins with."""
    for schedule in EVERYTHING.schedules:
        if is_claimed(Focus.UNEVEN, schedule, EVERYTHING):
            runs = [run for case in _corpus(schedule, Focus.UNEVEN, size=4) for run in case.runs]
            assert runs
            assert all(run.batch_size % run.num_microbatches for run in runs), schedule.name


def test_the_last_stage_hands_on_what_it_is_given_in_some_cases_about_views() -> None:
    found = [case for one in EVERYTHING.schedules for case in _corpus(one, Focus.VIEWS, size=4)]
    empty = [case for case in found if any(not stage.blocks for stage in case.model.stages)]

    assert len(found) // 4 < len(empty) < len(found)
    for case in empty:
        assert [bool(stage.blocks) for stage in case.model.stages] == [*[True] * (case.num_stages - 1), False]
        assert not case.model.classes


@pytest.mark.parametrize("size", [2, 3, 6])
def test_traffic_is_looked_at_among_bystanders_by_however_few_cases(size) -> None:
    """A pipeline that is the whole world cannot show that its engine takes the default group."""
    for schedule in EVERYTHING.schedules:
        if is_claimed(Focus.TRAFFIC, schedule, EVERYTHING) and schedule.max_ranks > 1:
            worlds = [case.world for case in _corpus(schedule, Focus.TRAFFIC, size=size)]
            assert any(len(world.pipeline_ranks) < world.size for world in worlds), schedule.name


def test_the_usual_numbers_of_ranks_stages_and_microbatches_are_reached() -> None:
    drawn_cases = _corpus(EVERYTHING.schedules[0], Focus.PLAIN, size=200)
    ranks = Counter(case.num_ranks for case in drawn_cases)
    relations = Counter(
        (m > p) - (m < p) for c in drawn_cases for p, m in [(c.num_ranks, c.trains[0].num_microbatches)]
    )
    sub_groups = [case for case in drawn_cases if case.world.size > case.num_ranks]

    assert set(ranks) == {1, 2, 3, 4}
    assert set(relations) == {-1, 0, 1}
    assert any(case.world.pipeline_ranks[0] > 0 for case in sub_groups)
    assert any(case.world.pipeline_ranks == (1, 3) for case in sub_groups)


def test_accumulation_lacks_a_zero_grad_between_two_training_steps() -> None:
    for case in _corpus(EVERYTHING.schedules[0], Focus.ACCUMULATE):
        steps = [step for step in case.program if isinstance(step, Train | Zero)]

        assert any(isinstance(a, Train) and isinstance(b, Train) for a, b in itertools.pairwise(steps))


def test_only_what_is_claimed_is_drawn() -> None:
    narrow = Capabilities(
        schedules=(ScheduleClaim(name="1F1B", min_ranks=2, max_ranks=3, min_microbatches_per_stage=1),),
        boundary=BoundaryClaim(dtypes=("float32",), min_ndim=3, max_ndim=3),
    )
    (claim,) = narrow.schedules
    limits = Limits(capabilities=narrow)
    foci = [focus for focus in Focus if is_claimed(focus, claim, narrow)]
    inside = [focus for focus in foci if focus is not Focus.EDGE]
    found = [case for focus in inside for case in _corpus(claim, focus, limits=limits)]

    assert foci == [
        Focus.PLAIN,
        Focus.UNEVEN,
        Focus.INPLACE,
        Focus.CHANGED_BATCH,
        Focus.ACTIVATIONS,
        Focus.DECODERS,
        Focus.TARGETS,
        Focus.VIEWS,
        Focus.EDGE,
        Focus.LAYOUT,
        Focus.DELAYED,
        Focus.TRAFFIC,
        *(
            focus
            for focus in Focus
            if focus in MISTAKEN - {Focus.NEIGHBOURS, Focus.HOOK_RAISES, Focus.SOURCE_ENDS, Focus.WRONG_TABLE}
        ),
    ]
    assert {case.model.dtype for case in found} == {"float32"}
    assert {case.num_ranks for case in found} == {2, 3}
    assert all(case.model.sequence for case in found)
    assert all(case.world.size == case.num_ranks for case in found)
    planned = [case for case in found if case.world.misplan is None]  # a wrong plan has a stage too many
    assert all(run.num_microbatches >= case.num_stages for case in planned for run in case.runs)


@pytest.mark.parametrize(
    ("least", "expected"),
    [
        ({"min_microbatches": 3}, lambda case: 3),
        ({"min_microbatches_per_rank": 2}, lambda case: 2 * case.num_ranks),
        ({"min_microbatches": 5, "min_microbatches_per_rank": 2}, lambda case: max(5, 2 * case.num_ranks)),
    ],
    ids=["m", "m / p", "both"],
)
def test_no_case_has_fewer_microbatches_than_are_claimed(least, expected) -> None:
    """But for those at the edges of a claim, which also look at what is outside of it."""
    claim = ScheduleClaim(name="own", max_ranks=3, **least)
    claimed = Capabilities(schedules=(claim,), features=EVERYTHING.features)
    limits = Limits(capabilities=claimed)
    foci = [focus for focus in Focus if is_claimed(focus, claim, claimed) and focus not in MISTAKEN]
    found = [
        case
        for focus in foci
        if focus is not Focus.EDGE and reachable(limits, claim, focus)
        for case in _corpus(claim, focus, limits=limits, size=3)
    ]
    edges = _corpus(claim, Focus.EDGE, limits=limits)

    assert len(found) > 50
    assert {case.num_ranks for case in found} >= {1, 2, 3}
    assert all(run.num_microbatches >= expected(case) for case in found for run in case.runs)
    assert any(run.num_microbatches < expected(case) for case in edges for run in case.runs)


def test_what_is_not_claimed_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="accumulation is not claimed under ForwardOnly"):
        cases(LIMITS, EVERYTHING.schedules[1], Focus.ACCUMULATE)


def test_limits_outside_the_claim_reach_nothing() -> None:
    claim = ScheduleClaim(name="GPipe", min_ranks=3)

    assert not reachable(Limits(capabilities=EVERYTHING, max_ranks=2), claim)


_DIGESTS = """
import json, sys
for name in sys.argv[1:]:
    __import__(name)
sys.path.insert(0, {root!r})
from tests.case.draw.test_strategies import CLAIMED, _corpus
print(json.dumps([case.digest for pair in CLAIMED[::5] for case in _corpus(*pair)]))
"""


@pytest.mark.slow
def test_modules_loaded_beside_do_not_change_a_corpus(pytestconfig) -> None:
    """Hypothesis mines constants from loaded modules; our tables are immune to it."""

    def digests(*modules: str) -> list[str]:
        code = _DIGESTS.format(root=str(pytestconfig.rootpath))
        run = subprocess.run(
            [sys.executable, "-c", code, *modules], capture_output=True, text=True, check=True
        )
        return json.loads(run.stdout)

    plain = digests()

    assert digests("decimal", "email.mime.text", "sqlite3", "xml.dom.minidom") == plain
    assert plain == [case.digest for pair in CLAIMED[::5] for case in _corpus(*pair)]
