"""What a run asks of a data-parallel wrapper."""

import dataclasses

import pytest
from msgspec import structs

from pipeconform.campaign.target import NotAsked
from pipeconform.campaign.wrapper import AskedOfWrapper, WrapperTarget
from pipeconform.case.any_case import WRAPPER_COLUMN
from pipeconform.errors import NothingJudgedError, UsageError
from pipeconform.execute.implementation import describe
from pipeconform.spec import profile
from pipeconform.spec.precedence import PLAIN_TRAINING
from pipeconform.spec.wrappers import wrapper_chapter, wrapper_requirement
from pipeconform.wrappers.registry import WRAPPER_JUDGEMENTS
from tests.case.examples import small_case
from tests.facts import tells

FOUND = describe("reference-wrapper")
PLAIN = wrapper_requirement("DPW-1")
OTHER = wrapper_requirement("DPW-2")


def target(ranks=(1, 4), **others):
    return WrapperTarget.of(FOUND, profile=profile("smoke"), ranks=ranks, seed=0, **others)


def asked(row=PLAIN, **others):
    found = target(**others).ask(row, WRAPPER_COLUMN, promises=lambda: pytest.fail("not asked"))
    assert isinstance(found, AskedOfWrapper)
    return found


def test_a_wrapper_has_one_column_and_no_schedules():
    assert target().columns == target().chosen(()) == (WRAPPER_COLUMN,)
    with pytest.raises(UsageError, match="which has no schedules"):
        target(schedules=("GPipe",))
    one = target(examples=3)
    assert (one.name, one.version, one.claims) == (FOUND.name, FOUND.version, FOUND.claims)
    assert (one.max_ranks, one.examples) == (4, 3)
    assert one.profile.search == profile("smoke").wrapper_search


def test_the_listed_cases_within_the_run_are_judged_as_many_as_are_asked_for():
    listed = WRAPPER_JUDGEMENTS["DPW-1"].drawn(FOUND.claims, seed=0)

    assert asked().listed.cases == tuple(one for one in listed if max(one.world_sizes) <= 4)
    assert asked(examples=2).listed.cases == asked().listed.cases[:2]
    few = asked(ranks=(1, 2))
    assert {case.ranks for case in few.listed.cases} <= {1, 2}
    assert few.num_ranks == 2


def test_a_run_on_fewer_ranks_than_any_case_leaves_it_out():
    fewest = {
        row.id: min((one.ranks for one in WRAPPER_JUDGEMENTS[row.id].drawn(FOUND.claims, seed=0)), default=0)
        for row in wrapper_chapter().requirements
    }
    row = wrapper_requirement(next(name for name, ranks in fewest.items() if ranks == 2))
    found = target(ranks=(1, 1)).ask(row, WRAPPER_COLUMN, promises=lambda: True)

    assert isinstance(found, NotAsked)
    assert found.status == "skipped"
    assert tells(found.reason, row.id, "2 or more replicas", "--ranks allows 1")


def test_what_is_not_claimed_is_not_asked():
    none = dataclasses.replace(FOUND, claims=dataclasses.replace(FOUND.claims, features=frozenset()))
    one = WrapperTarget.of(none, profile=profile("smoke"), ranks=(1, 4), seed=0)
    kinds = {
        row.id: one.ask(row, WRAPPER_COLUMN, promises=lambda: True) for row in wrapper_chapter().requirements
    }

    assert {name for name, found in kinds.items() if isinstance(found, NotAsked)}
    assert all(found.status == "not_claimed" for found in kinds.values() if isinstance(found, NotAsked))


def test_a_claim_without_room_for_a_case_is_an_error():
    alone = dataclasses.replace(FOUND, claims=dataclasses.replace(FOUND.claims, max_ranks=1))
    one = WrapperTarget.of(alone, profile=profile("smoke"), ranks=(1, 4), seed=0)

    empty = [row for row in wrapper_chapter().requirements if not _listed(row, alone.claims)]
    assert empty
    for row in empty:
        with pytest.raises(NothingJudgedError, match=f"{row.id} is claimed, but no case"):
            one.ask(row, WRAPPER_COLUMN, promises=lambda: True)


def _listed(row, claims):
    return WRAPPER_JUDGEMENTS[row.id].drawn(claims, seed=0)


def test_the_control_is_plain_training_but_for_plain_training_itself():
    assert asked().plain == ()
    assert asked().controls(asked().listed.cases[0]) == ()
    other = asked(OTHER)
    assert other.plain == asked().listed.cases
    words = {words for case in other.listed.cases for words, _ in other.controls(case)}
    assert words == {PLAIN_TRAINING}
    assert [row.id for row in other.explaining(other.listed.cases[0])] == ["DPW-1"]
    assert other.instead(PLAIN).row is PLAIN


def test_cases_are_a_wrapper_s_own_and_within_the_ranks():
    case = asked().listed.cases[0]
    wide = structs.replace(case, ranks=4)

    assert asked().own(case) is case
    assert asked().own(small_case()) is None
    assert asked().applies(case)
    assert target().allows(case)
    assert not target().allows(small_case())
    assert [target(ranks=ranks).allows(wide) for ranks in ((1, 4), (4, 4), (1, 3), (5, 5))] == [
        True,
        True,
        False,
        False,
    ]


def test_a_stored_case_is_judged_by_who_lists_cases_like_it():
    case = asked().listed.cases[0]

    def judged_by(**of):
        return [
            row.id
            for row in target().judged_by(case, name="the file", **{"asked": None, "stored": None, **of})
        ]

    assert judged_by(asked="DPW-1", stored="DPW-2") == judged_by(stored="DPW-1") == ["DPW-1"]
    assert "DPW-1" in judged_by()
    assert "DPW-24" not in judged_by()  # which has cases of its own
    assert list(target().against("DPW-1", WRAPPER_COLUMN)) == list(
        WRAPPER_JUDGEMENTS["DPW-1"].drawn(FOUND.claims, seed=0)
    )
