"""The terminal says for which levels a run found an implementation conformant, and what follows a green run."""

import msgspec
import pytest

from pipeconform.report.causes import causes_of
from pipeconform.report.levels_text import level_lines, next_lines
from pipeconform.spec import certification_level, mandatory
from pipeconform.spec.wrappers import all_requirements

FORWARD = [row.id for row in mandatory(certification_level("forward"))]


@pytest.fixture
def said(make):
    """The lines about the levels, and those about what to do next."""

    def of(*wrong, unclaimed=(), selection="", unrestricted=True, complete=True):
        cells = [
            make.cell(row.id, "GPipe", make.violation(row.id, "GPipe"))
            if row.id in wrong
            else make.cell(row.id, "GPipe", status="not_claimed" if row.id in unclaimed else "passed")
            for row in all_requirements()
            if row.id.partition("-")[0] != "DPW"
        ]
        result = make.result(*cells, complete=complete)
        run = msgspec.structs.replace(result.run, selection=selection, unrestricted=unrestricted)
        result = msgspec.structs.replace(result, run=run)
        causes = causes_of(result)
        return level_lines(result, causes=causes), list(next_lines(result, causes=causes))

    return of


def test_a_run_in_which_all_is_met_names_every_level_and_proposes_the_highest(said):
    (line,), following = said()

    assert line.startswith("conformant, by what this run judged, for Forward, Training, ")
    assert following == ["next: pipeconform certify --impl torch --level full"]


def test_unclaimed_requirements_are_counted_and_the_first_such_level_is_next(said):
    (first, others), following = said(unclaimed=FORWARD[1:-1])

    assert first == "conformant, by what this run judged, for no level"
    assert others.startswith("  Forward: 30 of 32 not claimed, at most 10; Training: ")
    assert following == ["next: pipeconform claims torch --level forward"]


def test_why_a_level_is_met_that_includes_one_that_is_not_is_said(said):
    """Eleven of Forward's are too many for Forward and few enough for Training."""
    (first, others, why), _ = said(unclaimed=FORWARD[1:12])

    assert first == "conformant, by what this run judged, for Training, Split-backward, Schedules"
    assert others.startswith("  Forward: 11 of 32 not claimed, at most 10; Robust: 11 of ")
    assert why == (
        "  level Training includes level Forward, but lets 17 of all its 71 requirements be unclaimed, "
        "where Forward lets 10 of its 32"
    )


def test_what_cannot_be_left_out_is_named(said):
    (first, others), following = said(unclaimed=["SPL-1"])

    assert first.endswith("for Forward, Training, Schedules, Robust, Data-parallel")
    assert others == "  Split-backward: SPL-1 not claimed; Full: SPL-1 not claimed"
    assert following == [
        "next: pipeconform certify --impl torch --level data-parallel",
        "next: pipeconform claims torch --level split-backward",
    ]


def test_a_red_run_says_which_levels_are_violated_and_its_causes_say_what_is_next(said):
    (first, others), following = said("TRN-1")

    assert first == "conformant, by what this run judged, for Forward"
    assert others.startswith("  Training: 1 violated; ")
    assert following == []


@pytest.mark.parametrize("restricted", [{"selection": "FWD"}, {"unrestricted": False}])
def test_a_run_of_some_cells_says_nothing_about_levels_and_proposes_the_whole(said, restricted):
    assert said(**restricted) == (
        (),
        ["next: pipeconform run --impl torch --profile smoke, which judges all that smoke has"],
    )


def test_a_run_that_was_stopped_proposes_nothing(said):
    (_, others), following = said(complete=False)

    assert others.startswith("  Forward: the run was stopped; ")
    assert following == []
