"""Every claim that a level needs can be looked for, and is enough for its core requirements to be judged."""

import dataclasses

import pytest

from pipeconform.adapter import Feature
from pipeconform.certificate.decision import _CLAIMED
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.spec import certification_levels, core_requirements
from pipeconform.spec.levels import needed_claims
from tests.case.examples import EVERYTHING

LEVELS = [level for level in certification_levels() if level.kind == "pipeline"]


def left_out(name):
    """Everything but one claim."""
    if name == "outputs":
        return dataclasses.replace(EVERYTHING, features=EVERYTHING.features - {Feature.OUTPUTS})
    if name == "data_parallel":
        return dataclasses.replace(EVERYTHING, data_parallel=None)
    value = None if name == "family" else False
    return dataclasses.replace(
        EVERYTHING,
        schedules=tuple(dataclasses.replace(claim, **{name: value}) for claim in EVERYTHING.schedules),
    )


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_each_claim_is_found_where_it_is_and_missed_where_it_is_not(level):
    for name in needed_claims(level):
        assert _CLAIMED[name](EVERYTHING)
        assert not _CLAIMED[name](left_out(name))


def test_a_family_is_needed_for_every_schedule():
    first, *others = EVERYTHING.schedules
    without = dataclasses.replace(first, family=None)

    assert not _CLAIMED["family"](dataclasses.replace(EVERYTHING, schedules=(without, *others)))


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_a_core_requirement_is_judged_with_these_claims(level):
    """So nothing is a core requirement whose claim the level does not state."""
    bare = dataclasses.replace(EVERYTHING, data_parallel=None, features=frozenset({Feature.OUTPUTS}))
    bare = dataclasses.replace(
        bare,
        data_parallel=EVERYTHING.data_parallel if "data_parallel" in needed_claims(level) else None,
    )

    for identifier in core_requirements(level):
        row = JUDGEMENTS[identifier]
        assert any(row.foci(claim, bare) for claim in bare.schedules), identifier
