"""What list and show say about levels, profiles and changes of the standard."""

import datetime

import msgspec

from pipeconform.commands.levels import describe_changes, describe_level, describe_profile, list_levels
from pipeconform.spec import (
    CertificationLevel,
    StandardVersion,
    certification_level,
    certification_levels,
    core_requirements,
    mandatory,
    profile,
)
from pipeconform.spec.wrappers import all_chapters


def _lacking(name: str) -> CertificationLevel:
    """A level that names two requirements which nobody wrote."""
    return msgspec.structs.replace(certification_level(name), requirements=("DPC-98", "DPC-99"))


def test_a_level_that_cannot_be_granted_says_so_in_the_list():
    levels = [*certification_levels()[:-1], _lacking("full")]
    lines = list_levels(levels, version="0.9").splitlines()

    assert [line.split()[0] for line in lines if "not available" in line] == ["full"]
    assert lines[-1].endswith("standard 0.9; 'pipeconform show LEVEL' prints one in full")


def test_a_level_is_explained_by_what_it_demands():
    level = certification_level("training")
    text = " ".join(describe_level(level, version="0.9").split())

    assert text.startswith("level Training (standard 0.9)")
    assert "State available" in text
    assert f"{level.draws} drawn per subject and schedule" in text
    assert "m = 1, m < p, m = p, m > p" in text
    assert f"at most {level.not_claimed:.0%} of the requirements" in text


def test_every_requirement_of_a_level_has_a_line_with_title_and_link_under_its_chapter():
    level = certification_level("training")
    lines = describe_level(level, version="0.9").splitlines()
    rows = mandatory(level)

    for row in rows:
        (line,) = [one.split() for one in lines if one.split()[:1] == [row.id]]
        core = ["*"] if row.id in core_requirements(level) else []
        assert line == [row.id, *core, *row.title.split(), *(row.links[:1] or ["the", "contract"])]
    chapters = [line for line in lines if line in {f"{one.id}  {one.title}" for one in all_chapters()}]
    assert [line.split()[0] for line in chapters] == ["FWD", "TRN", "COM", "LIF"]
    assert not any(f"{rows[0].id}, " in line for line in lines)


def test_a_level_states_the_claims_without_which_it_cannot_be_had():
    needed = {
        name: " ".join(describe_level(certification_level(name), version="0.9").split())
        for name in ("forward", "split-backward", "full", "wrapper")
    }

    assert "Must claim the merged output is returned (Feature.OUTPUTS) Never left out" in needed["forward"]
    assert "(Feature.OUTPUTS); a schedule that trains" in needed["split-backward"]
    assert "and whatever else its requirements need" in needed["full"]
    assert "Must claim" not in needed["wrapper"]


def test_a_level_that_is_not_available_names_what_is_missing():
    text = " ".join(describe_level(_lacking("data-parallel"), version="0.9").split())

    assert "State not available in this version of the standard: it has no DPC-98, DPC-99 yet" in text


def test_a_profile_is_explained_by_its_numbers():
    core = profile("core")

    assert f"{core.corpus} drawn per subject and schedule" in describe_profile(core)


def test_changes_are_told_by_version():
    version = StandardVersion(version="0.9", date=datetime.date(2026, 1, 2), changes=("One.", "Two."))

    assert describe_changes(version) == "0.9  (2026-01-02)\n  - One.\n  - Two."
