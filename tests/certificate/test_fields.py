"""Every value of a package's result is in its range, and agrees with the others of its cell."""

from __future__ import annotations

import msgspec
import pytest

from pipeconform.certificate.contents import Contents
from pipeconform.certificate.fields import field_doubts
from tests.certificate.conftest import LEVEL, violated

replaced = msgspec.structs.replace


def texts(contents: Contents) -> list[str]:
    return [str(doubt).removeprefix("result.json: ") for doubt in field_doubts(LEVEL, contents)]


def with_run(contents: Contents, *, device: str = "cpu", **fields) -> Contents:
    result = contents.result
    environment = replaced(result.environment, device=device)
    return replaced(
        contents, result=replaced(result, environment=environment, run=replaced(result.run, **fields))
    )


def with_cell(contents: Contents, **fields) -> Contents:
    first, *others = contents.result.cells
    return replaced(contents, result=replaced(contents.result, cells=(replaced(first, **fields), *others)))


def with_violation(contents: Contents, **fields) -> Contents:
    """The only violation of a package changed."""
    (one,) = contents.result.cells[0].violations
    return with_cell(contents, violations=(replaced(one, **fields),))


@pytest.fixture
def wrong(make, contents):
    return violated(make, contents)


def test_a_sound_package_is_within_all_ranges_with_and_without_a_violation(contents, wrong):
    assert texts(contents) == texts(wrong) == []


# ------------------------------------------------------------------------------------------------- the run


@pytest.mark.parametrize(
    ("max_ranks", "device", "doubt"),
    [
        (4, "cpu", None),
        (4, "cuda", None),
        (3, "cuda", None),
        (3, "cpu", "3, but CPUs always have room for 4"),
        (2, "cuda", "2, but level Forward demands 3"),
        (2, "cpu", "2, but level Forward demands 3"),
        (5, "cuda", "5, but level Forward uses 4"),
    ],
)
def test_as_many_ranks_are_used_as_the_level_demands_and_the_machine_has(contents, max_ranks, device, doubt):
    found = texts(with_run(contents, max_ranks=max_ranks, device=device))

    assert found == ([] if doubt is None else [f"run.max_ranks: {doubt}"])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("profile", "full"),
        ("seed", 1),
        ("search", 1),
        ("selection", "FWD-1"),
        ("unrestricted", False),
        ("ids", ("b" * 32,)),
    ],
)
def test_a_certification_is_asked_for_in_one_way(contents, field, value):
    (doubt,) = texts(with_run(contents, **{field: value}))

    assert doubt.startswith(f"run.{field}: {value!r}, but a certification for this level has ")


def test_a_shard_is_restricted_to_its_schedules(shard):
    half = shard(1)

    assert texts(half) == []
    (doubt,) = texts(with_run(half, unrestricted=True))
    assert doubt.startswith("run.unrestricted: True, but")


@pytest.mark.parametrize(("seconds", "is_right"), [(0.0, True), (-1.0, False), (float("inf"), False)])
def test_durations_are_finite_and_not_negative(contents, seconds, is_right):
    for doubts in (texts(with_run(contents, seconds=seconds)), texts(with_cell(contents, seconds=seconds))):
        assert len(doubts) == (not is_right)
        assert all("is not a duration" in doubt for doubt in doubts)


def test_rules_are_those_of_this_version_for_what_was_judged_and_nothing_else(contents):
    rules = contents.result.rules

    def of(rules):
        return texts(replaced(contents, result=replaced(contents.result, rules=rules)))

    differ = "rules: differ from the rules of this version: "
    assert of({**rules, "FWD-2": "0" * 12}) == [f"{differ}FWD-2"]
    assert of({name: digest for name, digest in rules.items() if name != "FWD-2"}) == [f"{differ}FWD-2"]
    assert of({**rules, "XYZ-1": "0" * 12}) == [f"{differ}XYZ-1"]


# -------------------------------------------------------------------------------------------------- cells


@pytest.mark.parametrize(
    ("fields", "doubt"),
    [
        ({"worst_ratio": None}, None),
        ({"worst_ratio": 0.0}, None),
        ({"worst_ratio": 1.0}, None),
        ({"worst_ratio": -0.1}, "cells.worst_ratio"),
        ({"worst_ratio": 1.1}, "cells.worst_ratio"),
        ({"compared": -1}, "cells"),
        ({"executions": -1}, "cells"),
        ({"executions": 0}, None),
        ({"microbatches": {"one": -1}}, "cells"),
        ({"reason": "no time"}, "cells.reason"),
        ({"stale": 1}, "cells.stale"),
        ({"compared": 0}, "cells.status"),
        ({"compared": 0, "status": "nothing_compared", "reason": "it had nothing"}, None),
        ({"status": "failed"}, "cells.status"),
        ({"status": "error"}, "cells.status"),
        ({"status": "error", "reason": "it raised"}, None),
        ({"status": "not_claimed", "reason": "it is not"}, None),
    ],
    ids=lambda value: (
        ",".join(f"{key}={one}" for key, one in value.items()) if isinstance(value, dict) else ""
    ),
)
def test_a_cell_s_values_are_possible(contents, fields, doubt):
    found = texts(with_cell(contents, **fields))

    assert [one.partition(":")[0] for one in found] == ([] if doubt is None else [doubt])


def test_counts_add_up_and_distinct_cases_are_no_more_than_judgements(contents):
    number = contents.result.cells[0].judgements

    assert texts(with_cell(contents, distinct_cases=number)) == []
    for fields in (
        {"distinct_cases": number + 1},
        {"counts": {"p=2,v=1": number + 1}},
        {"counts": {"p=2,v=1": number + 1, "p=3,v=1": -1}},
    ):
        (doubt,) = texts(with_cell(contents, **fields))
        assert doubt.startswith(("cells.distinct_cases: ", "cells.counts: ", "cells: "))
    assert texts(with_cell(contents, counts={"p=2,v=1": number})) == []


# --------------------------------------------------------------------------------------------- violations


@pytest.mark.parametrize(
    ("fields", "doubt"),
    [
        ({"occurrences": 1}, None),
        ({"occurrences": 0}, "occurrences"),
        ({"replay": "pipeconform run"}, "replay"),
        ({"reruns": 3, "shown_again": 3, "shown_otherwise": 0, "confirmed": True}, None),
        ({"reruns": 3, "shown_again": 1, "shown_otherwise": 2, "confirmed": True}, None),
        ({"reruns": 3, "shown_again": 1, "shown_otherwise": 1, "confirmed": False, "minimal": False}, None),
        ({"reruns": 3, "shown_again": 2, "shown_otherwise": 0, "confirmed": True}, "confirmed"),
        (
            {"reruns": 3, "shown_again": 3, "shown_otherwise": 0, "confirmed": False, "minimal": False},
            "confirmed",
        ),
        ({"reruns": 3, "shown_again": 3, "shown_otherwise": 1, "confirmed": True}, "reruns"),
        ({"reruns": 3, "shown_again": -1, "shown_otherwise": 4, "confirmed": True}, "reruns"),
        ({"shrink_executions": -1}, "reruns"),
        (
            {"reruns": 1, "shown_again": 0, "shown_otherwise": 0, "confirmed": False, "minimal": True},
            "minimal",
        ),
        ({"first_wrong": None, "timeline": None}, None),
        ({"first_wrong": (0, 0), "timeline": None}, "first_wrong"),
        ({"first_wrong": (0, 0), "timeline": (("0F0",), ("1F0",))}, None),
        ({"first_wrong": (1, 1), "timeline": (("0F0",), ("1F0",))}, None),
        ({"first_wrong": (1, 2), "timeline": (("0F0",), ("1F0",))}, "first_wrong"),
        ({"first_wrong": (2, 0), "timeline": (("0F0",), ("1F0",))}, "first_wrong"),
        ({"first_wrong": (-1, 0), "timeline": (("0F0",), ("1F0",))}, "first_wrong"),
        ({"first_wrong": (0, -1), "timeline": (("0F0",), ("1F0",))}, "first_wrong"),
        ({"verdicts": "rank 0  returned\nrank 1  returned"}, None),
        ({"verdicts": "rank 0  returned"}, "verdicts"),
        ({"verdicts": "rank 0  returned\nrank 0  returned"}, "verdicts"),
        ({"verdicts": "rank 0  a\nrank 1  b\nrank 2  c"}, "verdicts"),
        ({"verdicts": ""}, None),
    ],
    ids=lambda value: (
        ",".join(f"{key}={one}" for key, one in value.items())[:60] if isinstance(value, dict) else ""
    ),
)
def test_a_violation_s_values_are_possible(wrong, fields, doubt):
    # one that is not confirmed makes its cell flaky, which is told beside it
    found = [one for one in texts(with_violation(wrong, **fields)) if not one.startswith("cells.status")]

    assert [one.partition(":")[0] for one in found] == (
        [] if doubt is None else [f"cells.violations.{doubt}"]
    )


def test_a_violation_occurs_in_no_more_than_all_cases_of_its_cell(wrong):
    number = wrong.result.cells[0].judgements

    assert texts(with_violation(wrong, occurrences=number)) == []
    assert len(texts(with_violation(wrong, occurrences=number + 1))) == 1


def test_a_violation_is_there_once_with_its_own_status_and_id(wrong):
    (one,) = wrong.result.cells[0].violations

    assert [text.partition(": ")[0] for text in texts(with_cell(wrong, violations=(one, one)))] == [
        "cells.violations.id"
    ]
    (doubt,) = texts(with_violation(wrong, id="other", replay=one.replay.replace(one.id, "other")))
    assert doubt == f"cells.violations.id: other: according to its cell, status and signature it is {one.id}"
    found = texts(with_violation(wrong, status="passed"))
    assert any(text.startswith("cells.violations.status: ") for text in found)


def test_ranks_of_a_world_that_is_a_single_process_are_not_counted(wrong):
    one = wrong.result.implementation
    single = replaced(one, capabilities={**one.capabilities, "world": "single_process"})
    made = with_violation(wrong, verdicts="rank 0  returned")

    assert any("1 of 2 ranks reported" in text for text in texts(made))
    alone = replaced(made, result=replaced(made.result, implementation=single))
    assert not any("ranks reported" in text for text in texts(alone))


def test_a_violation_s_case_is_one_that_its_requirement_judges(wrong, make):
    other = replaced(make.case(p=2), schedule="1F1B")

    assert any("does not judge this case" in text for text in texts(with_violation(wrong, case=other)))
