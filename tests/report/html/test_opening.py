"""The first screen says what the terminal's verdict says, in the same tone."""

import pytest

from pipeconform.report.causes import causes_of
from pipeconform.report.html.opening import opening_of
from pipeconform.report.result import Control, Expectations
from pipeconform.report.summary import verdict


@pytest.fixture
def opening():
    return lambda result: opening_of(result, causes=causes_of(result))


def test_a_violation_is_bad_and_counted(opening, make):
    found = opening(
        make.result(
            make.cell("TRN-1", "GPipe", make.violation("TRN-1", "GPipe", signature="gradient value")),
            make.cell("FWD-1", "GPipe", make.violation("FWD-1", "GPipe", signature="output value")),
            make.cell("FWD-2", "GPipe"),
        )
    )

    assert (found.tone, found.symbol) == ("bad", "✗")
    assert found.headline == "Violates 2 of 3 judged requirements, for 2 causes"
    assert found.conformant == "Conformant for no level"


def test_a_run_that_was_stopped_is_open_and_not_wrong(opening, make):
    found = opening(make.result(make.cell("FWD-1", "GPipe"), complete=False))

    assert (found.tone, found.symbol) == ("open", "◐")
    assert found.headline == "So far meets the one judged requirement"
    assert found.remarks == ("the run was stopped early: cells are missing",)
    assert found.conformant == "No level yet"


def results(make):
    control = Control(digest="d", requirement="TRN-1", status="failed", signature="gradient value")
    wrong = make.cell("TRN-1", "GPipe", make.violation("TRN-1", "GPipe", signature="gradient value"))
    known = make.cell("FWD-2", "GPipe", make.violation("FWD-2", "GPipe", expected="e.toml:1"))
    effect = make.cell("DPC-6", "GPipe", make.violation("DPC-6", "GPipe", control=control), status="blocked")
    met = make.cell("FWD-1", "GPipe")
    void = make.cell("FWD-3", "GPipe", status="nothing_compared")
    error = make.cell("FWD-4", "GPipe", status="error", judgements=0, reason="it broke")
    complaint = Expectations(file="e.toml", digest="d", entries=1, problems=("e.toml:1: matches nothing",))
    for cells in (
        (),
        (met,),
        (wrong, met),
        (known,),
        (known, wrong),
        (wrong, effect),
        (met, void),
        (met, error),
    ):
        for complete in (True, False):
            result = make.result(*cells, complete=complete)
            yield result
            yield make.changed(result, expectations=complaint)


def test_page_and_terminal_never_disagree(opening, make):
    tones = {"good": "green", "open": "yellow", "bad": "red"}
    for result in results(make):
        said = verdict(result)
        found = opening(result)

        assert str(said.style) == f"bold {tones[found.tone]}"
        assert ("stopped early" in said.plain) == any("stopped early" in one for one in found.remarks)
        if result.run.complete:  # of a run that was stopped, the terminal says only that
            assert ("could not be judged" in said.plain) == any("could not" in one for one in found.remarks)
        assert ("blocked" in said.plain) == any("blocked" in one for one in found.remarks)
        assert (" violates " in said.plain) == (
            "iolates" in found.headline
        ) or "violates nothing" in said.plain
        assert ("nothing was judged" in said.plain) == ("othing was judged" in found.headline)


def test_levels_say_what_is_in_their_way(opening, make):
    found = opening(make.result(make.cell("FWD-1", "GPipe", make.violation("FWD-1", "GPipe"))))
    forward = found.levels[0]

    assert (forward.title, forward.tone, forward.words, forward.in_the_way) == (
        "Forward",
        "bad",
        "1 violated",
        ("FWD-1",),
    )


@pytest.mark.parametrize(
    ("names", "remark"),
    [
        (["LIF-3"], "only SHOULD, which decides no level"),
        (["LIF-3", "FWD-1"], "1 of them only SHOULD, which decides no level"),
        (["LIF-3", "FWD-1", "FWD-24"], "2 of them only SHOULD, which decide no level"),
        (["FWD-1"], None),
    ],
)
def test_what_decides_about_no_level_is_counted(opening, make, names, remark):
    cells = [
        make.cell(name, "GPipe", make.violation(name, "GPipe", signature=f"{name} is wrong"))
        for name in names
    ]

    assert [one for one in opening(make.result(*cells)).remarks if "SHOULD" in one] == [remark][
        : bool(remark)
    ]


@pytest.mark.parametrize(
    ("expected", "headline"),
    [
        (None, "Meets the one judged requirement, but e.toml has 2 things to change"),
        ("", "Violates 1 of 1 judged requirement, and e.toml has 2 things to change"),
        ("e.toml:1", "Violates 1 requirement, only as expected, but e.toml has 2 things to change"),
    ],
)
def test_a_headline_is_not_red_without_its_reason(opening, make, expected, headline):
    wrong = [] if expected is None else [make.violation("FWD-1", "GPipe", expected=expected)]
    entries = Expectations(file="e.toml", digest="d", entries=1, problems=("e.toml:1: a", "e.toml:2: b"))

    found = opening(make.changed(make.result(make.cell("FWD-1", "GPipe", *wrong)), expectations=entries))

    assert (found.tone, found.headline) == ("bad", headline)


def test_a_requirement_that_was_not_selected_is_violated_if_a_control_shows_it(opening, make):
    """The terminal counts it, too."""
    control = Control(digest="d", requirement="FWD-1", status="hung", signature="hang")
    effect = make.cell("TRN-1", "GPipe", make.violation("TRN-1", "GPipe", control=control), status="blocked")

    found = opening(make.result(effect))

    assert found.headline == "Violates 1 of 2 judged requirements"
    assert found.conformant == "Conformant for no level"
    assert (found.levels[0].words, found.levels[0].in_the_way) == ("1 violated", ("FWD-1",))
    assert [(row.identifier, row.met, row.total) for row in found.chapters] == [("FWD", 0, 1), ("TRN", 0, 1)]


def test_what_is_not_claimed_is_counted(opening, make):
    found = opening(
        make.result(
            make.cell("FWD-1", "GPipe"),
            *(make.cell(f"FWD-{k}", "GPipe", status="not_claimed", judgements=0) for k in (2, 3)),
        )
    )

    assert found.unclaimed == "2 requirements are not claimed"
    assert found.tally == (("met", "met", 1), ("not_claimed", "not claimed", 2))


def test_what_was_selected_is_told_as_words(opening, make):
    result = make.result(make.cell("FWD-1", "GPipe"))

    found = opening(make.changed(result, run=make.changed(result.run, selection="FWD-1,TRN-3")))

    assert found.remarks == ("only a selection was judged: FWD-1, TRN-3",)
