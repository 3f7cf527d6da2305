"""What to claim for a requirement: the lines are enough, and none of them is too much."""

from dataclasses import replace

import pytest

from pipeconform.claims import BoundaryClaim, Capabilities, ErrorContract, Feature, Placement, ScheduleClaim
from pipeconform.judge import claiming
from pipeconform.judge.claiming import PLAINEST, _possible, additions_for, lines_of, wrapper_addition
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.wrapper import WrapperFeature


def with_all(additions, capabilities):
    """The claims of the first schedule with the additions."""
    claims = (capabilities.schedules[0], capabilities)
    for one in additions:
        claims = one.to(claims)
    return claims


@pytest.mark.parametrize("requirement", JUDGEMENTS)
def test_what_to_claim_for_a_requirement_is_enough_and_nothing_of_it_is_too_much(requirement):
    judgement = JUDGEMENTS[requirement]
    additions = additions_for(judgement, PLAINEST)

    assert additions is not None
    own = [one for one in additions if one.place[0] != "Description"]  # promises decide nothing about cases
    assert is_judged(judgement, own)
    assert [one for one in own if is_judged(judgement, [other for other in own if other != one])] == []


def is_judged(judgement, additions):
    """Whether the plainest adapter with the additions is judged; one that others are inside of cannot be left out."""
    made = {(*one.place, one.text.removesuffix("()")) for one in additions}
    inside = {one.place for one in additions if one.place[-1].endswith(("TracingClaim", "ParallelClaim"))}
    return inside <= made and bool(judgement.foci(*with_all(additions, PLAINEST)))


def line(requirement, capabilities=PLAINEST):
    return lines_of(additions_for(JUDGEMENTS[requirement], capabilities))


def test_features_share_a_line_and_a_claim_that_is_made_is_written_once():
    assert line("FWD-11") == (
        "in Capabilities: features=frozenset({…, Feature.OUTPUTS, Feature.STRUCTURED_OUTPUTS})",
    )
    assert line("DPC-9") == (
        "in Capabilities: features=frozenset({…, Feature.BUFFERS})",
        "in Capabilities: data_parallel=DataParallelClaim(…, synchronised_norms=True)",
    )
    assert line("SPL-2") == ('in ScheduleClaim(name="GPipe", …): split_backward=True',)


def test_what_is_claimed_is_kept_in_the_line():
    given = replace(PLAINEST, boundary=BoundaryClaim(dtypes=("float64",)))

    assert line("FWD-6", given) == (
        'in Capabilities: boundary=BoundaryClaim(…, dtypes=("float64", "bfloat16"))',
    )


def test_nothing_is_missing_for_what_is_claimed():
    assert additions_for(JUDGEMENTS["TRN-1"], PLAINEST) == ()


def test_a_feature_that_the_only_schedule_lacks_is_no_longer_to_be_lacked():
    claim = ScheduleClaim(name="A", lacks=frozenset({Feature.KWARGS}))
    given = Capabilities(schedules=(claim,), features=frozenset({Feature.KWARGS}))

    assert line("FWD-9", given) == ('in ScheduleClaim(name="A", …): Feature.KWARGS no longer in lacks',)


def test_the_schedule_that_needs_the_least_is_named():
    both = replace(PLAINEST, schedules=(ScheduleClaim(name="A", trains=False), ScheduleClaim(name="B")))

    assert line("SPL-2", both) == ('in ScheduleClaim(name="B", …): split_backward=True',)


@pytest.mark.parametrize("requirement", ["TRN-1", "SPL-1", "ERR-1", "ERR-12", "DPC-1", "DPC-9"])
def test_an_engine_that_does_not_train_is_to_train_for_what_is_about_training(requirement):
    """For gradients, for mistakes in a step, and for replicas; outputs do not need it."""
    claim = ScheduleClaim(name="A", trains=False)
    only = replace(PLAINEST, schedules=(claim,), features=frozenset({Feature.EVAL}))

    assert any("trains=True" in one for one in line(requirement, only))
    assert not any("trains=True" in one for one in line("FWD-1", only))


def test_an_engine_without_names_is_given_the_family_of_its_name_or_the_plainest():
    def family(name, placement):
        given = replace(PLAINEST, schedules=(ScheduleClaim(name=name, placement=placement),))
        return [
            one.text for one in additions_for(JUDGEMENTS["SCH-2"], given) if one.text.startswith("family")
        ]

    assert family("DualPipe", Placement.MIRROR) == ['family="dualpipe"']
    assert family("something", Placement.MIRROR) == ['family="dualpipe"']
    assert family("1F1B", Placement.LOOP) == ['family="one_f_one_b"']
    assert family("something", Placement.LOOP) == ['family="gpipe"']


def test_a_schedule_for_one_rank_is_to_have_more():
    alone = replace(PLAINEST, schedules=(ScheduleClaim(name="A", max_ranks=1),))

    assert line("SCH-7", alone) == line("SCH-7", PLAINEST)
    assert [one.text for one in _possible((alone.schedules[0], alone)) if "ranks" in one.text] == [
        "max_ranks=8"
    ]
    assert [one.text for one in _possible((PLAINEST.schedules[0], PLAINEST)) if "ranks" in one.text] == []


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({}, {"split_backward=True", "stages_per_rank=(1, 2)"}),
        ({"split_backward": True}, {"stages_per_rank=(1, 2)"}),
        (
            {"split_backward": True, "split_weights": "deferred"},
            {'split_weights="all"', "stages_per_rank=(1, 2)"},
        ),
        ({"split_weights": "deferred"}, {"split_backward=True", "stages_per_rank=(1, 2)"}),
        (
            {"takes_placement": False},
            {"split_backward=True", "takes_placement=True", "stages_per_rank=(1, 2)"},
        ),
        ({"stages_per_rank": (2,)}, {"split_backward=True"}),
        ({"stages_per_rank": (1, 2)}, {"split_backward=True"}),
        ({"max_ranks": 2}, {"split_backward=True", "stages_per_rank=(1, 2)"}),
    ],
    ids=lambda value: ",".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_to_a_schedule_is_added_what_it_does_not_have(fields, texts):
    claim = ScheduleClaim(name="A", **fields)
    given = replace(PLAINEST, schedules=(claim,))
    place = ('ScheduleClaim(name="A", …)',)

    assert {one.text for one in _possible((claim, given)) if one.place == place} == texts


def test_features_are_tried_that_the_schedule_does_not_have_if_features_are_asked_for():
    claim = ScheduleClaim(name="A", lacks=frozenset({Feature.KWARGS}))
    given = replace(PLAINEST, schedules=(claim,), features=frozenset({Feature.KWARGS, Feature.TOKENS}))
    texts = [one.text for one in _possible((claim, given))]

    assert "Feature.KWARGS no longer in lacks" in texts
    assert "Feature.DROPOUT" in texts
    assert "Feature.TOKENS" not in texts
    assert not any("Feature" in one.text for one in _possible((claim, given), features=False))


def test_sizes_grow_to_the_largest_that_is_drawn_and_not_beyond():
    def sizes(**fields):
        claim = ScheduleClaim(name="A", boundary=BoundaryClaim(**fields))
        possible = _possible((claim, replace(PLAINEST, schedules=(claim,))))
        return {one.text for one in possible if one.place[0].startswith("Schedule") and "max_" in one.text}

    assert sizes(max_tensors=1, max_ndim=2) == {"max_tensors=4", "max_ndim=3"}
    assert sizes(max_tensors=3, max_ndim=3) == {"max_tensors=4"}
    assert sizes(max_tensors=4, max_ndim=2) == {"max_ndim=3"}
    assert sizes(max_tensors=9, max_ndim=9) == set()


def test_features_are_not_tried_with_more_than_one_other_addition(monkeypatch):
    """There are many of them: three at a time would be thousands of tries."""
    tried = []
    monkeypatch.setattr(claiming, "is_claimed", lambda *given: tried.append(given))

    assert additions_for(JUDGEMENTS["DPC-1"], PLAINEST) is None
    assert 0 < len(tried) < 20_000


def test_an_engine_of_another_kind_has_no_short_answer():
    alone = Capabilities(
        schedules=(ScheduleClaim(name="A", placement=Placement.SINGLE_PROCESS),), world="single_process"
    )

    assert additions_for(JUDGEMENTS["DPC-1"], alone) is None


def test_a_promise_is_asked_for_only_where_none_is_made():
    made = ErrorContract(promises={"batch": ("ValueError",)})

    assert [one.place[0] for one in additions_for(JUDGEMENTS["ERR-15"], PLAINEST)] == ["Description"]
    assert additions_for(JUDGEMENTS["ERR-15"], PLAINEST, made) == ()


def test_a_wrapper_s_feature_is_claimed_in_its_own_claims():
    assert lines_of([wrapper_addition(WrapperFeature.JOIN)]) == (
        "in WrapperClaims: features=frozenset({…, WrapperFeature.JOIN})",
    )
