"""A wrapper case that cannot be is told from one that differs little and can; who runs which step; what names it."""

from __future__ import annotations

import hashlib
import json

import pytest
from msgspec import structs

from pipeconform.case.wrapper_case import Pass, Regroup, Step, Uneven, WrapperCase
from pipeconform.errors import BadCaseError
from pipeconform.wrapper import Sharding, WrapOptions

TOWERS = {"module": "towers"}


def _sharded(*groups: tuple[int, ...]) -> WrapOptions:
    return WrapOptions(sharding=Sharding(expert_groups=groups))


def _uses(*names: str) -> tuple[Step, ...]:
    return (Step(passes=(Pass(), Pass(uses=names))),)


LEAST = "a wrapper case has at least one rank, one step and a pass in every step"
OF_USES = "Pass.uses needs the module 'towers' and one entry for every rank"
OF_OVERFLOWS = "Step.overflow needs special 'scaled' and the module 'probed'"
OVERFLOWS = (Step(), Step(overflow=0))
PAIRS = {
    "a rank": ({"ranks": 1}, {"ranks": 0}, LEAST),
    "a step": ({"steps": (Step(),)}, {"steps": ()}, LEAST),
    "a pass in every step": ({"steps": (Step(), Step())}, {"steps": (Step(), Step(passes=()))}, LEAST),
    "steps of every rank": (
        {"uneven": Uneven(steps=(1, 2))},
        {"uneven": Uneven(steps=(1, 2, 3))},
        "uneven.steps has 3 entries for 2 ranks",
    ),
    "towers of every rank": (
        {**TOWERS, "steps": _uses("a", "b")},
        {**TOWERS, "steps": _uses("a")},
        OF_USES,
    ),
    "towers of a module that has them": (
        {**TOWERS, "steps": _uses("a", "b")},
        {"steps": _uses("a", "b")},
        OF_USES,
    ),
    "other modules use everything": ({}, {"steps": _uses("a", "b")}, OF_USES),
    "a new group of its ranks": (
        {"regroup": Regroup(step=1, ranks=(0, 1))},
        {"regroup": Regroup(step=1, ranks=(0, 2))},
        "regroup.ranks (0, 2) are not all below 2",
    ),
    "experts on every rank": (
        {"ranks": 4, "options": _sharded((0, 2), (1, 3))},
        {"ranks": 4, "options": _sharded((0, 2), (1,))},
        "expert_groups ((0, 2), (1,)) do not name each of 4 ranks once",
    ),
    "experts on a rank once": (
        {"ranks": 2, "options": _sharded((1,), (0,))},
        {"ranks": 2, "options": _sharded((0, 1), (1,))},
        "expert_groups ((0, 1), (1,)) do not name each of 2 ranks once",
    ),
    "a second world": ({"loaded_by": 1}, {"loaded_by": -1}, "loaded_by -1 must be at least 0"),
    "a second world loads only": (
        {"loaded_by": 1},
        {"loaded_by": 1, "special": "scaled"},
        "loaded_by 1 must be at least 0, and 0 if special ('scaled') is set",
    ),
    "one world does other things": (
        {"special": "scaled"},
        {"loaded_by": 2, "special": "logged"},
        "loaded_by 2 must be at least 0",
    ),
    "an overflow of scaled losses": (
        {"special": "scaled", "module": "probed", "steps": OVERFLOWS},
        {"module": "probed", "steps": OVERFLOWS},
        OF_OVERFLOWS,
    ),
    "an overflow in a module that is probed": (
        {"special": "scaled", "steps": (Step(), Step())},
        {"special": "scaled", "steps": OVERFLOWS},
        OF_OVERFLOWS,
    ),
}


@pytest.mark.parametrize(("possible", "impossible", "words"), PAIRS.values(), ids=PAIRS)
def test_an_impossible_case_is_told_from_one_that_is_possible(possible, impossible, words) -> None:
    assert WrapperCase(**possible)
    with pytest.raises(BadCaseError) as raised:
        WrapperCase(**impossible)
    assert str(raised.value).startswith(words)


def test_shardings_without_experts_need_no_groups() -> None:
    assert WrapperCase(options=WrapOptions(sharding=Sharding())).options.sharding == Sharding()


# ------------------------------------------------------------------------------------------ who runs what

STEPS = (Step(), Step(), Step())


def test_every_rank_runs_every_step_unless_something_is_uneven() -> None:
    case = WrapperCase(steps=STEPS)

    assert [case.num_steps(rank) for rank in range(2)] == [3, 3]
    assert [case.present(step) for step in range(4)] == [(0, 1), (0, 1), (0, 1), ()]


def test_uneven_ranks_run_their_own_numbers_of_steps() -> None:
    case = WrapperCase(ranks=3, steps=STEPS, uneven=Uneven(steps=(3, 0, 2)))

    assert [case.num_steps(rank) for rank in range(3)] == [3, 0, 2]
    assert [case.present(step) for step in range(3)] == [(0, 2), (0, 2), (0,)]


def test_ranks_outside_of_a_new_group_stop_where_it_takes_over() -> None:
    case = WrapperCase(ranks=3, steps=STEPS, regroup=Regroup(step=1, ranks=(0, 2)))

    assert [case.num_steps(rank) for rank in range(3)] == [3, 1, 3]
    assert [case.present(step) for step in range(3)] == [(0, 1, 2), (0, 2), (0, 2)]


@pytest.mark.parametrize(
    ("sync", "reduces"),
    [("yes", True), ("no", False), ("nested", False), ("forward_inside", False), ("backward_inside", True)],
)
def test_gradients_are_reduced_where_the_forward_ran_outside_of_no_sync(sync: str, reduces: bool) -> None:
    assert Pass(sync=sync).synchronises is reduces


def test_a_saved_case_is_loaded_by_a_world_with_other_data() -> None:
    case = WrapperCase(ranks=2, loaded_by=3, seed=5)

    assert case.world_sizes == (2, 3)
    assert case.saving == WrapperCase(ranks=2, special="saved", seed=5)
    assert case.loading == WrapperCase(ranks=3, seed=6)
    assert WrapperCase().world_sizes == (2,)
    assert (case.num_ranks, case.stages_per_rank) == (2, 1)


# ------------------------------------------------------------------------------------------ what names it


def test_a_case_is_named_by_what_differs_from_the_usual() -> None:
    """A field that is added later, with a default, leaves the names of stored cases as they are."""
    usual = WrapperCase()

    assert usual.digest == "44136fa355b3"  # of an empty object
    assert WrapperCase(options=WrapOptions(), steps=(Step(), Step())).digest == usual.digest


NAMED = {
    "its own fields": ({"ranks": 3, "seed": 1}, {"ranks": 3, "seed": 1}),
    "fields of parts": ({"uneven": Uneven(steps=(1, 2))}, {"uneven": {"steps": [1, 2]}}),
    "fields of entries": ({"steps": (Step(zero="keep"),)}, {"steps": [{"zero": "keep"}]}),
    "options": ({"options": WrapOptions(find_unused=True)}, {"options": {"find_unused": True}}),
    "options of shards": (
        {"options": _sharded((0, 1))},
        {"options": {"sharding": {"expert_groups": [[0, 1]]}}},
    ),
    "shards as usual": ({"options": WrapOptions(sharding=Sharding())}, {"options": {"sharding": {}}}),
}


@pytest.mark.parametrize(("changes", "unusual"), NAMED.values(), ids=NAMED)
def test_the_name_is_a_digest_of_what_is_unusual_alone(changes, unusual) -> None:
    text = json.dumps(unusual, separators=(",", ":"), sort_keys=True)

    assert WrapperCase(**changes).digest == hashlib.sha256(text.encode()).hexdigest()[:12]


@pytest.mark.parametrize(
    "changes",
    [
        {"ranks": 3},
        {"seed": 1},
        {"steps": (Step(),)},
        {"steps": (Step(), Step(zero="keep"))},
        {"steps": (Step(), Step(passes=(Pass(sync="no"),)))},
        {"options": WrapOptions(sharding=Sharding())},
        {"options": _sharded((0, 1))},
        {"uneven": Uneven(steps=(1, 2))},
        {"uneven": Uneven(steps=(2, 1))},
        {"regroup": Regroup(step=1, ranks=(0,))},
    ],
    ids=repr,
)
def test_whatever_differs_has_another_name(changes) -> None:
    one = WrapperCase(**changes)

    assert one.digest != WrapperCase().digest
    assert one.digest == structs.replace(WrapperCase(), **changes).digest
    assert len(one.digest) == 12


def test_what_is_too_large_is_told() -> None:
    def told(**changes) -> list[str]:
        return [reason.partition(" is ")[0] for reason in WrapperCase(**changes).too_large()]

    assert told() == []
    assert told(ranks=1024, loaded_by=1024) == []
    assert told(ranks=1025) == ["ranks"]
    assert told(loaded_by=1025) == ["loaded_by"]
    assert told(steps=(Step(),) * 1001) == ["the number of steps"]
    assert told(steps=(Step(), Step(passes=(Pass(),) * 1001))) == ["the number of passes in a step"]
    assert told(steps=(Step(passes=(Pass(forwards=1001),)), Step())) == ["forwards of a pass"]
    assert told(seed=1 << 63) == ["seed"]
    assert told(seed=(1 << 63) - 1) == told(seed=1 - (1 << 63)) == []
