"""docs/programs.md and docs/program-verdicts.md: how long programs are, and that they say what `replay` says."""

from __future__ import annotations

import re
import statistics
import tomllib

import pytest

from benchmarks.lines import kept
from benchmarks.programs.asked import USED_WRONGLY
from benchmarks.programs.outcomes import Outcome
from benchmarks.programs.page import page
from pipeconform.campaign.trial import faults, wrapper_faults
from pipeconform.execute.implementation import BUILT_IN

AT_THE_MEDIAN, NINE_TENTHS = 150, 250
ELSEWHERE = "torch ERR-10:GPipe:validated:c332"
"""Finding 53: what ends the process is called by the mended engine, too."""


@pytest.fixture(scope="module")
def lengths(pytestconfig):
    """The table of lengths: its rows by their names."""
    text = (pytestconfig.rootpath / "docs/programs.md").read_text("utf-8")
    table = text.partition("<!-- lengths -->")[2].partition("\n\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    return {name: rest for name, *rest in rows}


def each(row):
    """Every length in the last column of a row; ``111 (8)`` is eight of them."""
    found = re.findall(r"(\d+)(?: \((\d+)\))?", row[-1])
    return [int(lines) for lines, times in found for _ in range(int(times or 1))]


@pytest.mark.parametrize("profile", ["smoke", "core", "together"])
def test_programs_of_both_profiles_are_as_short_as_they_should_be(lengths, profile):
    number, median, nine_tenths, *_ = map(int, lengths[profile][:4])

    assert number > 50
    assert median <= AT_THE_MEDIAN
    assert nine_tenths <= NINE_TENTHS


def test_the_lengths_of_all_programs_are_there(lengths):
    number, median, nine_tenths, longest = map(int, lengths["together"][:4])
    several = sorted(n for name, row in lengths.items() if "-" in name for n in each(row))

    assert len(several) == number == sum(int(lengths[one][0]) for one in ("smoke", "core"))
    assert (f"{statistics.median(several):.0f}", several[int(0.9 * number)], several[-1]) == (
        f"{median}",
        nine_tenths,
        longest,
    )


@pytest.fixture(scope="module")
def outcomes(pytestconfig):
    return kept(pytestconfig.rootpath / "docs/program-verdicts.json", Outcome)


REQUIREMENTS = sorted({one.requirement for one in (*faults().values(), *wrapper_faults().values())})


def test_the_page_has_what_is_kept(outcomes, pytestconfig):
    written = (pytestconfig.rootpath / "docs/program-verdicts.md").read_text("utf-8")

    assert written == page(outcomes, REQUIREMENTS)


def test_every_requirement_that_can_be_violated_has_a_program(outcomes):
    ours = {name for name, one in outcomes.items() if one.implementation.startswith("pipeconform.")}

    assert {outcomes[name].requirement for name in ours} == set(REQUIREMENTS)


def test_every_program_says_what_replay_says_and_not_of_a_mended_engine(outcomes):
    assert [name for name, one in outcomes.items() if not one.as_it_should] == [ELSEWHERE]
    assert outcomes[ELSEWHERE].verdicts == ("reproduced",) * 3


def test_every_kind_of_violation_was_seen_in_processes_of_its_own(outcomes):
    def kinds(several):
        return {(one.requirement.partition("-")[0], one.status) for one in several}

    assert kinds(one for one in outcomes.values() if one.alone) == kinds(outcomes.values())


def test_every_built_in_adapter_has_a_program(outcomes):
    right = {use.reference: use.right for use in USED_WRONGLY}
    seen = {right.get(one.implementation, one.implementation) for one in outcomes.values()}

    assert {name for name in BUILT_IN if not name.startswith("reference")} <= seen


def test_every_requirement_that_colossalai_is_expected_to_break_has_a_program(outcomes, pytestconfig):
    expected = tomllib.loads((pytestconfig.rootpath / "docs/engines/colossalai.toml").read_text("utf-8"))
    seen = {one.requirement for one in outcomes.values() if one.implementation == "colossalai"}

    assert {one["requirement"] for one in expected["expect"]} == seen


def test_everything_that_deepspeed_is_expected_to_break_has_a_program(outcomes, pytestconfig):
    expected = tomllib.loads((pytestconfig.rootpath / "docs/engines/deepspeed.toml").read_text("utf-8"))
    seen = {
        (one.requirement, one.status, one.signature)
        for one in outcomes.values()
        if one.implementation == "deepspeed"
    }

    assert {(one["requirement"], one["status"], one["signature"]) for one in expected["expect"]} <= seen
