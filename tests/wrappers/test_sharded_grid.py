"""The grid of sharding options: every two claimed values meet, nothing unclaimed is asked for."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from pipeconform.reference_impl.sharded_adapter import SHARDING

from pipeconform.adapters.torch_sharding import FSDP_SHARDING, FULLY_SHARD_SHARDING
from pipeconform.case.wrapper_case import WrapperCase, decode_case
from pipeconform.errors import BadCaseError
from pipeconform.sharding import Sharding, ShardingClaims
from pipeconform.spec import profile
from pipeconform.wrapper import WrapOptions, WrapperClaims, WrapperFeature
from pipeconform.wrappers.groups import group_of
from pipeconform.wrappers.registry import WRAPPER_JUDGEMENTS
from pipeconform.wrappers.sharded_grid import (
    axes_of,
    delayed_cases,
    every_case,
    pairwise_cases,
    refused_cases,
)

CLAIMED = {"reference": SHARDING, "fully_shard": FULLY_SHARD_SHARDING, "FSDP": FSDP_SHARDING}


def _claims(sharding: ShardingClaims) -> WrapperClaims:
    return WrapperClaims(features=frozenset({WrapperFeature.SHARDS}), sharding=sharding)


def _values(case: WrapperCase) -> set[tuple[str, object]]:
    sharding = case.options.sharding
    assert sharding is not None
    return {
        ("module", case.module),
        ("strategy", sharding.strategy),
        ("nesting", sharding.nesting),
        ("ranks", case.ranks),
        ("precision", (case.options.param_dtype, case.options.reduce_dtype)),
        ("optimizer", case.optimizer),
        ("forward_prefetch", sharding.forward_prefetch),
        ("backward_prefetch", sharding.backward_prefetch),
        ("original_parameters", sharding.original_parameters),
        ("accumulate", len(case.steps[0].passes)),
        ("compiled", case.compiled),
    }


@pytest.mark.parametrize("name", CLAIMED)
def test_every_two_values_that_meet_anywhere_meet_in_few_cases(name: str) -> None:
    claims = _claims(CLAIMED[name])
    every, few = list(every_case(claims)), list(pairwise_cases(claims))

    def pairs(cases):
        return {
            pair
            for case in cases
            for pair in itertools.combinations(sorted(_values(case), key=lambda value: value[0]), 2)
        }

    assert pairs(few) == pairs(every)
    assert len(few) < 40
    assert len(every) > 4000
    assert not few[0].compiled  # the cheap ones come first


def test_the_least_claims_give_plain_cases_only() -> None:
    for case in pairwise_cases(_claims(ShardingClaims())):
        assert case.options == WrapOptions(sharding=Sharding())
        assert (case.module, case.compiled, len(case.steps[0].passes)) == ("blocks", False, 1)


def test_the_profile_exhaustive_runs_the_whole_grid_and_no_other_does() -> None:
    judgement, claims = (
        WRAPPER_JUDGEMENTS["DPW-39"],
        _claims(ShardingClaims(strategies=("full", "gradients"))),
    )

    assert profile("exhaustive").whole_grids
    assert not profile("full").whole_grids
    assert len(judgement.drawn(claims, seed=0, whole_grid=True)) == 8
    assert len(judgement.drawn(claims, seed=0)) < 8


def test_what_is_documented_as_refused_is_asked_for_by_one_requirement_only() -> None:
    claims = _claims(FSDP_SHARDING)
    (case,) = refused_cases(claims)

    assert case.module == "partly"
    assert case.options.sharding is not None
    assert not case.options.sharding.original_parameters
    assert case.steps
    for other in every_case(claims):
        assert (other.module, other.options.sharding.original_parameters) != ("partly", False)


def test_every_kind_of_lateness_is_asked_for_once_with_and_once_without_prefetching() -> None:
    cases = list(delayed_cases(_claims(SHARDING)))

    assert {case.slow for case in cases} == {"reduction", "gathering", "loss", "freeing"}
    assert {case.options.sharding.forward_prefetch for case in cases} == {False, True}


def test_axes_begin_with_the_plainest_value() -> None:
    plain = {name: values[0] for name, values in axes_of(_claims(SHARDING)).items()}

    assert plain["module"] == "blocks"
    assert plain["strategy"] == "full"
    assert plain["ranks"] == 2
    assert not any(
        plain[name] for name in ("forward_prefetch", "backward_prefetch", "accumulate", "compiled")
    )


def test_who_is_averaged_with_whom() -> None:
    options = WrapOptions(ignored=("apart.bias",), sharding=Sharding(expert_groups=((0, 2), (1,))))
    case = WrapperCase(module="experts", ranks=3, options=options)

    assert group_of(case, "enter.weight", 1) == (0, 1, 2)
    assert group_of(case, "apart.bias", 1) == (1,)
    assert group_of(case, "expert.weight", 2) == (0, 2)
    assert decode_case(msgspec.json.encode(case), source="case") == case


def test_experts_are_on_every_rank_once() -> None:
    options = WrapOptions(sharding=Sharding(expert_groups=((0,), (1,))))
    with pytest.raises(BadCaseError, match=r"do not name each of 3 ranks once"):
        WrapperCase(module="experts", ranks=3, options=options)


@pytest.mark.parametrize("name", WRAPPER_JUDGEMENTS)
def test_claims_of_one_rank_have_no_case_of_several(name):
    """Shards need two ranks: who claims one has no such case, and it is no error to ask for them."""
    alone = WrapperClaims(features=frozenset(WrapperFeature), sharding=SHARDING, max_ranks=1)
    cases = WRAPPER_JUDGEMENTS[name].drawn(alone, seed=0)

    assert {size for case in cases for size in case.world_sizes} <= {1}
