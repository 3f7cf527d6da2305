"""What claims in a package may be as large as."""

import dataclasses

import pytest

from pipeconform.adapter import Capabilities, ScheduleClaim
from pipeconform.certificate.bounds import require_bounded
from pipeconform.errors import TooLargeError
from pipeconform.wrapper import WrapperClaims
from tests.case.examples import EVERYTHING


def test_claims_that_an_engine_makes_are_bounded():
    require_bounded(EVERYTHING)
    require_bounded(WrapperClaims())


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"a": "x" * 2001}, r"^capabilities\.a: 2001 characters; at most 2000 are allowed$"),
        ({"a": [["x"] * 65]}, r"^capabilities\.a\.0: 65 entries; at most 64 are allowed$"),
        ({"a": {str(n): n for n in range(65)}}, r"^capabilities\.a: 65 entries; at most 64 are allowed$"),
    ],
)
def test_what_is_too_large_is_named_with_its_place(claims, words):
    """Whatever the claims of a later version have."""
    with pytest.raises(TooLargeError, match=words):
        require_bounded(claims)


def test_what_is_as_large_as_allowed_is_no_doubt():
    require_bounded({"a": "x" * 2000, "b": ["x"] * 64})


@pytest.mark.parametrize(("depth", "is_allowed"), [(12, True), (13, False)])
def test_claims_are_twelve_levels_deep_at_most(depth, is_allowed):
    claims = 1
    for _ in range(depth):
        claims = {"a": claims}

    if is_allowed:
        require_bounded(claims)
        return
    with pytest.raises(TooLargeError, match=r"^capabilities(\.a){13}: deeper than 12 levels$"):
        require_bounded(claims)


@pytest.mark.parametrize(("stages", "is_allowed"), [(0, False), (1, True), (256, True)])
@pytest.mark.parametrize("place", [0, 1])
def test_every_schedule_has_stages_on_its_ranks(stages, is_allowed, place):
    schedules = [ScheduleClaim(name="A"), ScheduleClaim(name="B")]
    schedules[place] = dataclasses.replace(schedules[place], stages_per_rank=(1, stages))
    claims = Capabilities(schedules=tuple(schedules))

    if is_allowed:
        require_bounded(claims)
        return
    with pytest.raises(TooLargeError, match=f"{'AB'[place]}: {stages} stages per rank; between 1 and 1024"):
        require_bounded(claims)


@pytest.mark.parametrize(("per_stage", "is_allowed"), [(128, True), (129, False)])
def test_a_schedule_needs_1024_microbatches_on_eight_stages_at_most(per_stage, is_allowed):
    claims = Capabilities(schedules=(ScheduleClaim(name="S", min_microbatches_per_stage=per_stage),))

    if is_allowed:
        require_bounded(claims)
        return
    with pytest.raises(TooLargeError, match="at least 1032 microbatches on 4 ranks with 2 stages each"):
        require_bounded(claims)


def test_what_is_small_beside_what_is_large_does_not_hide_it():
    for claims in ({"a": 1, "b": "x" * 2001, "c": 2}, {"b": "x" * 2001, "c": 2}, {"a": 1, "b": "x" * 2001}):
        with pytest.raises(TooLargeError, match=r"^capabilities\.b: 2001 characters"):
            require_bounded(claims)
