"""Levels are consistent, and a level whose chapters do not exist is refused."""

import msgspec
import pytest

from pipeconform.errors import LevelUnavailableError, UnknownNameError
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.spec import (
    CertificationLevel,
    Level,
    certification_level,
    certification_levels,
    chapters,
    core_requirements,
    mandatory,
    missing,
    requirements,
)
from pipeconform.spec.levels import batch_class
from pipeconform.wrappers.registry import WRAPPER_JUDGEMENTS

AVAILABLE = [level for level in certification_levels() if not missing(level)]


def test_the_levels_are_those_of_the_standard():
    assert [level.title for level in certification_levels()] == [
        "Forward",
        "Training",
        "Split-backward",
        "Schedules",
        "Robust",
        "Data-parallel",
        "Full",
        "Wrapper",
    ]


@pytest.mark.parametrize("level", certification_levels(), ids=lambda level: level.name)
def test_every_number_of_a_level_can_be_reached(level: CertificationLevel):
    assert 0 < level.examples <= level.draws
    assert 0 <= level.not_claimed < 1
    assert max(level.ranks) >= 2
    assert level.min_schedules >= 1
    assert all(certification_level(name) for name in level.includes)


@pytest.mark.parametrize("level", AVAILABLE, ids=lambda level: level.name)
def test_what_an_available_level_demands_exists_and_is_judged(level: CertificationLevel):
    ids = [row.id for row in mandatory(level)]

    assert ids
    assert set(core_requirements(level)) <= set(ids) <= {*JUDGEMENTS, *WRAPPER_JUDGEMENTS}


@pytest.mark.parametrize("level", AVAILABLE, ids=lambda level: level.name)
def test_a_level_holds_the_levels_it_includes(level: CertificationLevel):
    ids = {row.id for row in mandatory(level)}

    assert all({row.id for row in mandatory(certification_level(name))} <= ids for name in level.includes)


def test_of_a_chapter_every_must_counts_and_nothing_else():
    expected = [row.id for row in chapters()[0].requirements if row.level is Level.MUST]

    assert [row.id for row in mandatory(certification_level("forward"))] == [*expected, "COM-7"]


@pytest.mark.parametrize("level", AVAILABLE, ids=lambda level: level.name)
def test_no_level_for_pipelines_is_had_without_being_seen_to_communicate(level: CertificationLevel):
    assert ("COM-7" in core_requirements(level)) is (level.kind == "pipeline")


def test_every_level_is_available():
    assert [level.name for level in certification_levels() if missing(level)] == []


def test_a_level_that_names_a_requirement_nobody_wrote_is_refused():
    level = msgspec.structs.replace(certification_level("forward"), requirements=("FWD-1", "FWD-99"))

    assert missing(level) == ("FWD-99",)
    with pytest.raises(LevelUnavailableError, match="FWD-99"):
        mandatory(level)


def test_a_level_may_name_single_requirements():
    level = msgspec.structs.replace(certification_level("forward"), requirements=("FWD-2", "FWD-1"))

    assert [row.id for row in mandatory(level)] == ["FWD-1", "FWD-2"]


def test_an_unknown_level_is_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match="unknown level 'trainig'; nearest: training"):
        certification_level("trainig")


@pytest.mark.parametrize(
    ("p", "m", "expected"),
    [(1, 1, "one"), (4, 1, "one"), (4, 3, "fewer"), (4, 4, "equal"), (4, 5, "more"), (1, 2, "more")],
)
def test_microbatches_are_classed_beside_ranks(p, m, expected):
    assert batch_class(num_ranks=p, num_microbatches=m) == expected


def test_no_requirement_is_left_out_of_every_level():
    demanded = {name for level in certification_levels() for name in level.requirements}

    assert {row.id.partition("-")[0] for row in requirements()} <= demanded
