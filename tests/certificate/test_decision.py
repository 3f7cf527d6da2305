"""Whether a result deserves its level: reasons that `test_checks` does not have, and what weakens a judgement."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from pipeconform.adapter import Capabilities, Feature, ScheduleClaim
from pipeconform.certificate.contents import Contents
from pipeconform.certificate.decision import (
    missing_claims,
    reasons_against,
    too_few_claimed,
    too_few_schedules,
    weakened_by,
)
from pipeconform.certificate.sizes import lacking
from pipeconform.spec import certification_level, core_requirements, mandatory
from tests.certificate.conftest import LEVEL, violated

replaced = msgspec.structs.replace
PLAIN = Capabilities(
    schedules=(ScheduleClaim(name="A", family="gpipe"), ScheduleClaim(name="B", family="one_f_one_b")),
    sub_groups=True,
)


def reasons(contents: Contents, level=LEVEL) -> tuple[str, ...]:
    return reasons_against(level, contents.result)


def with_cells(contents: Contents, *cells) -> Contents:
    return replaced(contents, result=replaced(contents.result, cells=tuple(cells)))


# ---------------------------------------------------------------------------------------------- what weakens


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({}, None),
        (
            {"inputs_consumed_by": "all"},
            'inputs_consumed_by="all": ranks without the first stage are given finite',
        ),
        (
            {"targets_consumed_by": "all"},
            'targets_consumed_by="all": ranks without the last stage are given finite',
        ),
        (
            {"kwargs_scope": "pipeline"},
            'kwargs_scope="pipeline": every rank is given the true keyword arguments',
        ),
        (
            {"world": "single_process"},
            'world="single_process": nothing crosses between ranks that could be seen',
        ),
        ({"sub_groups": False}, "sub_groups=False: every pipeline was the whole world"),
    ],
    ids=lambda value: next(iter(value), "nothing") if isinstance(value, dict) else "",
)
def test_each_claim_with_which_less_is_seen_is_told_by_its_name(claims, words):
    found = list(weakened_by(dataclasses.replace(PLAIN, **claims)))

    assert len(found) == (words is not None)
    assert words is None or found[0].startswith(words)


def test_what_a_schedule_lacks_is_told_if_the_implementation_has_it_otherwise():
    lacks = frozenset({Feature.KWARGS, Feature.DROPOUT, Feature.TOKENS})
    first, second = PLAIN.schedules
    claims = dataclasses.replace(
        PLAIN,
        schedules=(first, dataclasses.replace(second, lacks=lacks)),
        features=frozenset({Feature.KWARGS, Feature.DROPOUT}),
    )

    assert list(weakened_by(claims)) == ["B lacks dropout, kwargs: what needs it is not judged there"]


@pytest.mark.parametrize(
    ("name", "family", "told"),
    [
        (
            "ZB-H1",
            None,
            "ZB-H1: no family is claimed, so its order, its bubble and its memory are not judged",
        ),
        ("ZB-H1", "gpipe", "ZB-H1: judged by the rules of GPipe, and not by those of ZB-H1"),
        (
            "interleaved 1f1b",
            "looped_bfs",
            "interleaved 1f1b: judged by the rules of Looped breadth-first, and not",
        ),
        ("ZB-H1", "zb_h1", None),
        ("1F1B", "one_f_one_b", None),
        ("Interleaved1F1B", "interleaved_one_f_one_b_megatron", None),
        ("ours", "gpipe", None),
    ],
)
def test_a_schedule_that_is_judged_by_other_rules_than_its_name_says_is_told(name, family, told):
    claims = dataclasses.replace(PLAIN, schedules=(ScheduleClaim(name=name, family=family),))

    found = list(weakened_by(claims))

    assert len(found) == (told is not None)
    assert told is None or found[0].startswith(told)


# -------------------------------------------------------------------------------------------------- claims


def test_a_share_of_what_is_not_claimed_is_counted_among_all_requirements_of_the_level():
    rows = [row.id for row in mandatory(LEVEL)]
    core = core_requirements(LEVEL)
    others = [name for name in rows if name not in core]
    most = int(LEVEL.not_claimed * len(rows))

    assert list(too_few_claimed(LEVEL, others[:most])) == []
    (reason,) = too_few_claimed(LEVEL, others[: most + 1])
    assert reason.startswith(f"{most + 1} of {len(rows)} requirements are not claimed (")
    assert reason.endswith(", ".join(others[: most + 1]))
    for name in core:
        assert list(too_few_claimed(LEVEL, [name])) == [
            f"{name} is not claimed under any schedule, and cannot be left out"
        ]


def test_exactly_the_share_that_a_level_allows_may_be_left_out():
    rows = [row.id for row in mandatory(LEVEL)]
    left = [name for name in rows if name not in core_requirements(LEVEL)][:3]
    exact = replaced(LEVEL, not_claimed=3 / len(rows))

    assert list(too_few_claimed(exact, left)) == []
    assert len(list(too_few_claimed(replaced(LEVEL, not_claimed=2.9 / len(rows)), left))) == 1


@pytest.mark.parametrize(("number", "is_enough"), [(1, False), (2, True), (3, True)])
def test_as_many_schedules_are_claimed_as_the_level_demands(number, is_enough):
    claims = Capabilities(schedules=tuple(ScheduleClaim(name=str(n)) for n in range(number)))
    found = list(too_few_schedules(replaced(LEVEL, min_schedules=2), claims))

    assert found == ([] if is_enough else [f"{number} schedules are claimed, at least 2 are needed"])


def test_of_several_schedules_all_return_outputs_and_one_trains():
    level = certification_level("training")
    every = frozenset({Feature.OUTPUTS})
    first, second = (dataclasses.replace(one, trains=True) for one in PLAIN.schedules)

    def missing(*schedules, features=every):
        made = dataclasses.replace(PLAIN, schedules=schedules, features=features)
        return [text.partition("claim: ")[2] for text in missing_claims(level, made)]

    whole = missing(first, second)
    assert missing(first, dataclasses.replace(second, trains=False)) == whole
    silent = dataclasses.replace(second, lacks=every)
    assert len(missing(first, silent)) == len(missing(silent, first)) == len(whole) + 1
    untrained = [dataclasses.replace(one, trains=False) for one in (first, second)]
    assert len(missing(*untrained)) == len(whole) + 1


# --------------------------------------------------------------------------------------------------- cells


def test_requirements_of_other_levels_have_no_say(contents, make):
    other = make.cell("TRN-1", "GPipe", status="failed")

    assert reasons(with_cells(contents, *contents.result.cells, other)) == ()


def test_schedules_and_variants_of_a_missing_requirement_are_named(contents):
    cells = contents.result.cells
    less = [one for one in cells if (one.requirement, one.schedule) != ("FWD-1", "1F1B")]
    none = [one for one in cells if one.requirement != "FWD-1"]
    variant = replaced(cells[0], variant="other")

    assert "FWD-1 is missing under 1F1B" in reasons(with_cells(contents, *less))
    assert "FWD-1 is missing under GPipe, 1F1B" in reasons(with_cells(contents, *none))
    found = reasons(with_cells(contents, variant, *cells))
    assert "FWD-1 is missing under 1F1B" in found
    assert "FWD-2 is missing under GPipe, 1F1B" in found


def test_what_is_wrong_is_told_once_for_all_schedules(contents, make):
    first, second, *others = violated(make, contents).result.cells
    failed = replaced(second, status="failed", violations=first.violations)

    assert reasons(with_cells(contents, first, failed, *others)) == ("FWD-1 failed under GPipe, 1F1B",)


def test_a_cell_that_is_called_passed_in_spite_of_a_violation_was_not_judged_so(contents, make):
    first, *others = violated(make, contents).result.cells

    assert reasons(with_cells(contents, replaced(first, status="passed"), *others)) == (
        "FWD-1 under GPipe is called passed, but was not judged so",
    )


@pytest.mark.parametrize("number", [LEVEL.examples - 1, LEVEL.examples])
def test_as_many_cases_are_judged_as_the_level_demands(contents, number):
    first, *others = contents.result.cells
    found = reasons(with_cells(contents, replaced(first, distinct_cases=number), *others))

    assert len(found) == (number < LEVEL.examples)


def test_sizes_are_looked_for_by_schedule_in_what_was_judged(contents):
    """A schedule's cells do not make up for those of another one, nor do cells that were not judged."""
    one_rank = {"counts": {"p=1,v=1": 6}, "microbatches": {"one": 6}}
    cells = [replaced(one, **one_rank) if one.schedule == "1F1B" else one for one in contents.result.cells]
    unjudged = [
        replaced(one, judgements=0) if one.schedule == "1F1B" else one for one in contents.result.cells
    ]

    assert reasons(with_cells(contents, *cells)) == (
        "1F1B was never judged with p = 2, p = 3, m < p, m = p, m > p",
    )
    assert any(
        one.startswith("1F1B was never judged with p = 1, p = 2")
        for one in reasons(with_cells(contents, *unjudged))
    )


def test_claims_of_another_kind_are_not_granted_the_level(contents):
    other = replaced(contents.result.implementation, kind="wrapper")

    assert reasons(replaced(contents, result=replaced(contents.result, implementation=other))) == (
        "level Forward is granted to a pipeline, and this is a wrapper",
    )


# --------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("claim", "ranks", "stages", "batches", "absent"),
    [
        ({}, (1, 2, 3), (1,), ("one", "fewer", "equal", "more"), ()),
        ({}, (1, 3), (1,), ("one", "fewer", "equal", "more"), ("p = 2",)),
        ({}, (1, 2, 3), (), ("one", "fewer", "equal", "more"), ("v = 1",)),
        ({}, (1, 2, 3), (1,), ("one", "more"), ("m < p", "m = p")),
        ({"min_ranks": 2}, (2, 3), (1,), ("one", "fewer", "equal", "more"), ()),
        ({"max_ranks": 2}, (1, 2), (1,), ("one", "fewer", "equal", "more"), ()),
        ({"max_ranks": 2}, (2,), (1,), ("one", "fewer", "equal", "more"), ("p = 1",)),
        ({"ranks_even": True, "min_ranks": 2}, (2,), (1,), ("one", "fewer", "equal", "more"), ()),
        ({"stages_per_rank": (1, 2)}, (1, 2, 3), (1,), ("one", "fewer", "equal", "more"), ("v = 2",)),
        ({"stages_per_rank": (2,)}, (1, 2, 3), (2,), ("one", "fewer", "equal", "more"), ()),
    ],
)
def test_sizes_are_demanded_where_level_and_claim_have_them(claim, ranks, stages, batches, absent):
    level = replaced(
        LEVEL, ranks=(1, 2, 3), stages_per_rank=(1, 2), microbatches=("one", "fewer", "equal", "more")
    )
    found = lacking(
        level, ScheduleClaim(name="S", **claim), ranks=ranks, stages_per_rank=stages, batches=batches
    )

    assert found == absent


def test_unreadable_claims_leave_no_schedule_to_look_at(contents):
    one = replaced(contents.result.implementation, capabilities={"schedules": 3})
    found = reasons(replaced(contents, result=replaced(contents.result, implementation=one)))

    assert found == ("the claims of the implementation cannot be read",)
