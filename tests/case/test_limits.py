"""Cases of files have limits that say what is too large and what to do; nothing is run or built to find out."""

from __future__ import annotations

import json

import msgspec
import pytest
from msgspec import structs

from pipeconform.case.any_case import AnyCase, case_of, decode_any_case
from pipeconform.case.blocks import Linear
from pipeconform.case.case import Case, Kwarg, Model, Passage, Stage, Train, World
from pipeconform.case.limits import bounded, too_large
from pipeconform.case.perturbations import Perturbation
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


LINEAR = Stage(blocks=(Linear(),))
DELAY = Perturbation(stage=0, milliseconds=600_000)


def _told(
    *steps: Train, world: dict | None = None, stages_per_rank: int = 1, seed: int = 0, **model
) -> list[str]:
    """What is too large, by name."""
    reasons = too_large(
        Model(**{"width": 3, "stages": (LINEAR,), **model}),
        World(**{"size": 1, "pipeline_ranks": (0,), **(world or {})}),
        steps or (Train(batch_size=1, num_microbatches=1),),
        stages_per_rank=stages_per_rank,
        seed=seed,
    )
    return [reason.partition(" is ")[0] for reason in reasons]


def _step(batch_size: int, num_microbatches: int = 1) -> Train:
    return Train(batch_size=batch_size, num_microbatches=num_microbatches)


AT_THE_LIMIT = {
    "world.size": lambda more: _told(world={"size": 1024 + more}),
    "the number of world.pipeline_ranks": lambda more: _told(
        world={"pipeline_ranks": tuple(range(1024 + more))}
    ),
    "stages_per_rank": lambda more: _told(stages_per_rank=4096 + more),
    "the number of model.stages": lambda more: _told(stages=(LINEAR,) * (4096 + more)),
    "the number of blocks in a stage": lambda more: _told(
        stages=(LINEAR, Stage(blocks=(Linear(),) * (256 + more)), LINEAR)
    ),
    "the number of model.passages": lambda more: _told(
        passages=(Passage(kind="stream", source=0, last=1),) * (256 + more)
    ),
    "the number of model.carried": lambda more: _told(carried=("mask",) * (256 + more)),
    "the number of model.kwargs": lambda more: _told(kwargs=(Kwarg(stage=0),) * (4096 + more)),
    "model.width": lambda more: _told(width=4096 + more),
    "model.sequence": lambda more: _told(sequence=4096 + more),
    "model.classes": lambda more: _told(classes=65_536 + more),
    "the number of steps in program": lambda more: _told(*(_step(1),) * (1000 + more)),
    "the number of world.perturbations": lambda more: _told(
        world={"perturbations": (DELAY,) * (1000 + more)}
    ),
    "milliseconds of a perturbation": lambda more: _told(
        world={"perturbations": (structs.replace(DELAY, milliseconds=600_000 + more),)}
    ),
    "program[0].batch_size": lambda more: _told(_step(65_536 + more), _step(1)),
    "program[1].batch_size": lambda more: _told(_step(1), _step(65_536 + more)),
    "program[0].num_microbatches": lambda more: _told(_step(20_000, 16_384 + more)),
    "batch size × sequence × width of program[0]": lambda more: _told(_step(16_384 + more), width=1024),
    "batch size × sequence × width of program[1]": lambda more: _told(
        _step(1), _step(1024 + more), width=128, sequence=128
    ),
}


@pytest.mark.parametrize(("name", "told"), AT_THE_LIMIT.items(), ids=AT_THE_LIMIT)
def test_what_is_as_large_as_may_be_can_be_run_and_one_more_cannot(name, told):
    assert told(0) == []
    assert told(1) == [name]


def test_every_perturbation_may_be_too_long_and_seeds_have_limits_on_both_sides():
    long = structs.replace(DELAY, milliseconds=600_001)

    assert _told(world={"perturbations": (long, DELAY, long)}) == ["milliseconds of a perturbation"] * 2
    most = (1 << 63) - 1
    assert [_told(seed=seed) for seed in (-most, most)] == [[], []]
    assert [_told(seed=seed) for seed in (-most - 1, most + 1)] == [["seed"], ["seed"]]


def test_the_first_thing_that_is_too_large_is_told_of_one_or_several():
    case = small_case(world=World(size=2000, pipeline_ranks=(0, 1)), seed=1 << 63)

    assert len(list(case.too_large())) == 2
    with pytest.raises(
        BadCaseError, match=r"^file: world\.size is 2,000; at most 1,024 can be run: make it smaller$"
    ):
        bounded(case, source="file")
    with pytest.raises(BadCaseError, match=r"^file: seed is outside"):
        bounded(small_case(seed=1 << 63), source="file")
    assert bounded(small_case(), source="file") == small_case()
