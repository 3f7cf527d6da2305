"""What wrapper cases are searched and made smaller by: inside what a requirement's listed cases are about."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import structs
from pipeconform.reference_impl.sharded_adapter import SHARDING

from pipeconform.campaign.corpus import run_strategy
from pipeconform.campaign.minimise import Budget, minimise
from pipeconform.case.wrapper_case import Pass, Step, Uneven, WrapperCase
from pipeconform.judge.evidence import Finding
from pipeconform.judge.outcome import Outcome, Status
from pipeconform.wrapper import WrapOptions, WrapperClaims, WrapperFeature
from pipeconform.wrappers.drawing import Listed, Smaller, is_about
from pipeconform.wrappers.registry import WRAPPER_JUDGEMENTS

EVERYTHING = WrapperClaims(features=frozenset(WrapperFeature))
SHARDED = WrapperClaims(features=frozenset(WrapperFeature), sharding=SHARDING)
WRONG = Outcome(Status.FAILED, Finding(kind="wrong", message="wrong"))
LARGE = WrapperCase(
    module="normed",
    ranks=3,
    form="dict",
    options=WrapOptions(bucket_mib=1e-4, bucket_view=True, find_unused=True),
    steps=(Step(), Step(passes=(Pass(sync="no"), Pass(sync="nested"), Pass())), Step(zero="keep")),
    seed=77,
)


def _smallest(target: WrapperCase, *, ranks=(1, 2, 3), shows) -> WrapperCase:
    return minimise(
        Smaller(target=target, ranks=ranks),
        target,
        WRONG,
        lambda case: WRONG if shows(case) else None,
        budget=Budget(executions=500),
        purpose="smaller",
    ).case


@pytest.mark.parametrize("identifier", WRAPPER_JUDGEMENTS)
def test_listed_cases_and_those_of_the_search_are_what_their_requirement_is_about(identifier: str) -> None:
    judgement = WRAPPER_JUDGEMENTS[identifier]
    cases = judgement.drawn(EVERYTHING, seed=0) or judgement.drawn(SHARDED, seed=0)
    seen: list[WrapperCase] = []
    run_strategy(
        Listed(requirement=identifier, cases=cases, seed=0),
        seen.append,
        max_examples=20,
        purpose="search",
    )

    assert all(is_about(case, cases) for case in (*cases, *seen))
    assert {case.ranks for case in seen} <= {case.ranks for case in cases}


@pytest.mark.parametrize("identifier", ["DPW-22", "DPW-23"])
def test_what_a_module_needs_of_the_options_is_not_taken_from_it(identifier: str) -> None:
    cases = WRAPPER_JUDGEMENTS[identifier].drawn(EVERYTHING, seed=0)
    seen: list[WrapperCase] = []
    listed = Listed(requirement=identifier, cases=cases, seed=0)
    run_strategy(listed, seen.append, max_examples=200, purpose="search")
    unused = [case for case in seen if case.module.endswith("_unused")]

    assert unused
    assert all(case.options.find_unused or case.options.static_graph for case in unused)
    plain = structs.replace(unused[0], options=WrapOptions())
    assert not is_about(plain, cases)
    assert is_about(structs.replace(plain, module=plain.module.removesuffix("_unused")), cases)


def test_the_search_draws_alike_and_beyond_what_is_listed() -> None:
    cases = WRAPPER_JUDGEMENTS["DPW-1"].drawn(EVERYTHING, seed=0)

    def drawn(seed: int) -> list[WrapperCase]:
        seen: list[WrapperCase] = []
        listed = Listed(requirement="DPW-1", cases=cases, seed=seed)
        run_strategy(listed, seen.append, max_examples=30, purpose="search")
        return seen

    assert drawn(0) == drawn(0) != drawn(1)
    combined = {
        (case.options.bucket_mib, case.options.bucket_view, case.options.find_unused) for case in drawn(0)
    }
    assert combined - {
        (case.options.bucket_mib, case.options.bucket_view, case.options.find_unused) for case in cases
    }


def test_what_shows_everywhere_becomes_the_plainest_case() -> None:
    found = _smallest(LARGE, shows=lambda case: True)

    assert found == WrapperCase(ranks=1, steps=(Step(),))
    assert msgspec.json.encode(found) == msgspec.json.encode(WrapperCase(ranks=1, steps=(Step(),)))


def test_what_it_takes_to_show_it_stays() -> None:
    def shows(case: WrapperCase) -> bool:
        late = any(one.sync == "nested" for step in case.steps for one in step.passes)
        return case.ranks > 1 and case.options.bucket_view and late

    found = _smallest(LARGE, shows=shows)

    assert found == WrapperCase(
        ranks=2, options=WrapOptions(bucket_view=True), steps=(Step(passes=(Pass(sync="nested"), Pass())),)
    )


def test_fewer_steps_leave_uneven_counts_and_the_last_pass_right() -> None:
    target = WrapperCase(
        steps=(Step(passes=(Pass(sync="no"), Pass())),) * 3, uneven=Uneven(steps=(3, 1), raise_early=True)
    )
    listed = (target,)
    found = _smallest(target, ranks=(2,), shows=lambda case: is_about(case, listed))

    assert found.uneven is not None
    assert sorted(found.uneven.steps) == [0, 1]
    assert [step.passes[-1].sync for step in found.steps] == ["yes"]


@pytest.mark.parametrize(
    "other",
    [
        WrapperCase(own_shape=False, ranks=2),
        WrapperCase(own_shape=True, ranks=1),
        WrapperCase(own_shape=True, hook="user"),
        WrapperCase(own_shape=True, options=WrapOptions(find_unused=True)),
        WrapperCase(own_shape=True, options=WrapOptions(bucket_mib=1.0)),
        WrapperCase(own_shape=True, uneven=Uneven(steps=(2, 1))),
    ],
)
def test_a_case_with_what_no_listed_one_has_is_about_something_else(other: WrapperCase) -> None:
    listed = WRAPPER_JUDGEMENTS["DPW-3"].drawn(EVERYTHING, seed=0)

    assert not is_about(other, listed)
    assert is_about(WrapperCase(own_shape=True, seed=5, steps=(Step(),)), listed)
