"""Where a result stands to a requirement, a chapter and a level, as far as it judged them."""

import pytest

from pipeconform.report.causes import causes_of
from pipeconform.report.result import Control
from pipeconform.report.standing import chapter_standings, level_standings, standings
from pipeconform.spec import certification_level, mandatory

BLOCKED = Control(digest="d", requirement="TRN-1", status="failed", signature="gradient value")


def standing(result):
    return standings(result, causes=causes_of(result))


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (["passed"], "met"),
        (["passed", "not_claimed"], "met"),
        (["passed", "skipped"], "met"),
        (["not_claimed"], "not_claimed"),
        (["not_claimed", "skipped"], "not_claimed"),
        (["skipped"], "unjudged"),
        (["nothing_compared"], "unjudged"),
        (["passed", "error"], "unjudged"),
    ],
)
def test_cells_without_violations_give_a_requirement_its_standing(make, statuses, expected):
    cells = [make.cell("FWD-1", f"S{k}", status=status) for k, status in enumerate(statuses)]

    assert standing(make.result(*cells)) == {"FWD-1": expected}


def test_a_violation_under_any_schedule_is_a_violation_and_a_blocked_one_is_not(make):
    result = make.result(
        make.cell("TRN-1", "GPipe", make.violation("TRN-1", "GPipe", signature="gradient value")),
        make.cell("TRN-1", "1F1B"),
        make.cell("DPC-6", "GPipe", make.violation("DPC-6", "GPipe", control=BLOCKED), status="blocked"),
    )

    assert standing(result) == {"TRN-1": "violated", "DPC-6": "blocked"}


def test_what_a_control_shows_is_a_violation_of_a_requirement_that_was_not_selected(make):
    effect = make.violation("DPC-6", "GPipe", control=BLOCKED)
    result = make.result(make.cell("DPC-6", "GPipe", effect, status="blocked"))

    assert standing(result) == {"DPC-6": "blocked", "TRN-1": "violated"}


def test_chapters_count_their_requirements_in_the_order_of_the_standard():
    first, last = chapter_standings({"XYZ-1": "met", "FWD-2": "met", "FWD-1": "violated", "FWD-10": "met"})

    assert (first.identifier, first.title, first.total) == ("FWD", "Values through the forward pass", 3)
    assert first.requirements["met"] == ("FWD-2", "FWD-10")
    assert (first.count("violated"), first.count("blocked")) == (1, 0)
    assert (last.identifier, last.title) == ("XYZ", "")


@pytest.fixture
def forward(make):
    """The level Forward of a result in which its requirements are met, but for some."""

    def level(changed=None, *, complete=True, without=()):
        found = {row.id: "met" for row in mandatory(certification_level("forward"))} | (changed or {})
        found = {name: value for name, value in found.items() if name not in without}
        return level_standings(make.result(complete=complete), found)[0]

    return level


def test_a_level_is_met_if_all_its_requirements_are(forward):
    level = forward()

    assert (level.title, level.state, level.in_the_way) == ("Forward", "met", ())
    assert level.total == len(mandatory(certification_level("forward")))


def test_a_run_that_was_stopped_meets_no_level(forward):
    assert forward(complete=False).state == "unjudged"


def test_a_violation_weighs_more_than_what_is_blocked_or_not_judged(forward):
    level = forward({"FWD-2": "blocked", "FWD-3": "violated"}, without=["FWD-4"])

    assert (level.state, level.in_the_way) == ("violated", ("FWD-3",))
    assert forward({"FWD-2": "blocked"}, without=["FWD-4"]).state == "blocked"
    assert forward(without=["FWD-4"]).in_the_way == ("FWD-4",)


def test_a_few_requirements_may_be_unclaimed_but_not_those_of_the_core(forward):
    most = [row.id for row in mandatory(certification_level("forward")) if row.id not in ("FWD-1", "COM-7")]

    assert forward({"FWD-9": "not_claimed"}).state == "met"
    assert forward({"FWD-1": "not_claimed", "FWD-9": "not_claimed"}).in_the_way == ("FWD-1",)
    assert forward(dict.fromkeys(most, "not_claimed")).state == "not_claimed"


def test_a_wrapper_is_compared_with_the_levels_for_wrappers(make):
    result = make.result()
    result = make.changed(result, implementation=make.changed(result.implementation, kind="wrapper"))

    assert [level.name for level in level_standings(result, {})] == ["wrapper"]
