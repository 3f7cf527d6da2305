"""Causes of two results are matched, and one that both have may have become worse."""

import pytest

from pipeconform.report.cause_change import matched_causes


@pytest.fixture
def results(make):
    """The old and the new result, of cells with one violation each or none."""

    def two(*sides):
        return [
            make.result(
                *(
                    make.cell(
                        name,
                        schedule,
                        *([] if fields is None else [make.violation(name, schedule, **fields)]),
                    )
                    for (name, schedule), fields in side.items()
                )
            )
            for side in sides
        ]

    return two


def told(found):
    return [(one.kind, one.cause.requirement, one.is_worse) for one in found]


def test_causes_come_stay_go_and_are_lost_from_sight(results):
    old, new = results(
        {
            ("FWD-1", "GPipe"): {},
            ("FWD-2", "GPipe"): {"signature": "output length"},
            ("LIF-7", "GPipe"): None,
        },
        {("FWD-1", "GPipe"): None, ("LIF-7", "GPipe"): {"signature": "boundary tensors beyond the bound"}},
    )

    assert told(matched_causes(old, new)) == [
        ("new", "LIF-7", False),
        ("fixed", "FWD-1", False),
        ("lost", "FWD-2", False),
    ]


def test_a_cause_is_worse_where_it_violates_what_was_met(results):
    old, new = results(
        {("FWD-1", "GPipe"): {}, ("FWD-1", "1F1B"): None}, {("FWD-1", "GPipe"): {}, ("FWD-1", "1F1B"): {}}
    )
    (worse,) = matched_causes(old, new)
    (better,) = matched_causes(new, old)

    assert (worse.kind, worse.is_worse, worse.spread) == ("same", True, (("FWD-1", "1F1B"),))
    assert (better.kind, better.is_worse) == ("same", False)


@pytest.mark.parametrize(
    "fields", [{"confirmed": False, "reruns": 3, "shown_again": 1}, {"expected": "e.toml:1"}]
)
def test_what_shows_by_chance_or_is_expected_makes_nothing_worse(results, fields):
    old, new = results(
        {("FWD-1", "GPipe"): {}, ("FWD-1", "1F1B"): None}, {("FWD-1", "GPipe"): {}, ("FWD-1", "1F1B"): fields}
    )

    assert {(kind, worse) for kind, _, worse in told(matched_causes(old, new))} == {("same", False)}


def test_a_schedule_that_was_not_judged_before_makes_nothing_worse(results):
    old, new = results({("FWD-1", "GPipe"): {}}, {("FWD-1", "GPipe"): {}, ("FWD-1", "1F1B"): {}})

    assert told(matched_causes(old, new)) == [("same", "FWD-1", False)]
