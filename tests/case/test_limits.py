"""Cases of files have limits that say what is too large and what to do; nothing is run or built to find out."""

from __future__ import annotations

import json

import msgspec
import pytest

from pipeconform.case.any_case import AnyCase, case_of, decode_any_case
from pipeconform.case.case import Case, World
from pipeconform.errors import BadCaseError
from tests.case.examples import small_case

WRAPPER = {"module": "plain", "ranks": 2, "steps": [{"passes": [{}]}]}


def changed(**changes: object) -> dict[str, object]:
    """A case in JSON with other values, by path such as ``world.size``."""
    case = json.loads(msgspec.json.encode(small_case()))
    for path, value in changes.items():
        *holders, last = path.split("__")
        place = case
        for one in holders:
            place = place[int(one) if one.isdecimal() else one]
        place[last] = value
    return case


TOO_LARGE = {
    "world.size is 3,000; at most 1,024": {"world__size": 3000},
    "program[0].batch_size is more than 10^18; at most 65,536": {"program__0__batch_size": 10**18},
    "program[0].num_microbatches is 20,000; at most 16,384": {
        "program__0__batch_size": 20_000,
        "program__0__num_microbatches": 20_000,
    },
    "seed is outside ±9223372036854775807": {"seed": 10**30},
    "a number of 41 digits or more; at most 32 are read": {"seed": 10**40},
    "model.width is 1,000,000; at most 4,096": {"model__width": 10**6},
    "batch size × sequence × width of program[0] is ": {
        "program__0__batch_size": 60_000,
        "model__width": 4000,
    },
}


@pytest.mark.parametrize("words", TOO_LARGE)
def test_what_is_too_large_is_refused_with_its_limit(words):
    with pytest.raises(BadCaseError) as caught:
        decode_any_case(json.dumps(changed(**TOO_LARGE[words])).encode(), source="file")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"), [({"ranks": 5000}, "ranks is 5,000"), ({"seed": 10**20}, "seed is outside")]
)
def test_a_wrappers_case_has_limits_too(change, words):
    with pytest.raises(BadCaseError) as caught:
        decode_any_case(json.dumps(WRAPPER | change).encode(), source="file")
    assert words in str(caught.value)


def test_cases_in_results_have_the_same():
    with pytest.raises(ValueError, match=r"world\.size is 3,000; at most 1,024 can be run: make it smaller"):
        case_of(AnyCase, changed(world__size=3000))


def test_what_is_made_here_may_be_as_large_as_it_likes():
    """Limits are for files: a program that builds a case knows what it asks for."""
    world = World(size=3000, pipeline_ranks=small_case().world.pipeline_ranks)
    assert isinstance(small_case(world=world), Case)
