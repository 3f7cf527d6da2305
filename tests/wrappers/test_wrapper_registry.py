"""Requirements, judgements, suite, claims and faults of wrappers belong together; cases are data."""

from __future__ import annotations

import msgspec
import pytest
from pipeconform.reference_impl.faults import WRAPPER_FAULTS

from pipeconform.case.wrapper_case import Pass, Regroup, Step, Uneven, WrapperCase, decode_case
from pipeconform.errors import BadCaseError, UnknownNameError
from pipeconform.spec.wrappers import wrapper_capabilities, wrapper_chapter, wrapper_requirement
from pipeconform.wrapper import WrapperClaims, WrapperDescription, WrapperFeature
from pipeconform.wrappers.judgement import why_not_judged
from pipeconform.wrappers.registry import WRAPPER_JUDGEMENTS
from tests.facts import tells

IDS = [row.id for row in wrapper_chapter().requirements]
EVERYTHING = WrapperClaims(features=frozenset(WrapperFeature))


def test_requirements_are_numbered_and_each_has_a_judgement_and_a_fault() -> None:
    assert [f"DPW-{i + 1}" for i in range(len(IDS))] == IDS
    assert list(WRAPPER_JUDGEMENTS) == IDS
    assert {fault.requirement for fault in WRAPPER_FAULTS.values()} == set(IDS)
    assert len(WRAPPER_FAULTS) >= 40


def test_without_claims_only_what_every_wrapper_owes_is_judged() -> None:
    drawn = {one for one, j in WRAPPER_JUDGEMENTS.items() if j.drawn(WrapperClaims(), seed=0)}

    assert drawn == {one for one, needs in wrapper_capabilities().items() if not needs}
    for judgement in WRAPPER_JUDGEMENTS.values():
        for case in judgement.drawn(WrapperClaims(), seed=0):
            assert case.options == type(case.options)()


def test_every_case_is_data_and_differs_from_the_others() -> None:
    for judgement in WRAPPER_JUDGEMENTS.values():
        cases = judgement.drawn(EVERYTHING, seed=0)
        again = [decode_case(msgspec.json.encode(case), source="case") for case in cases]
        assert again == list(cases)
        assert len({case.digest for case in cases}) == len(cases)
        assert {case.seed for case in judgement.drawn(EVERYTHING, seed=1)}.isdisjoint(
            case.seed for case in cases
        )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"steps": ()}, "at least one rank"),
        ({"uneven": Uneven(steps=(1, 2, 3))}, "3 entries for 2 ranks"),
        ({"steps": (Step(passes=(Pass(uses=("a", "b")),)),)}, "needs the module 'towers'"),
        ({"module": "towers", "steps": (Step(passes=(Pass(uses=("a",)),)),)}, "one entry for every rank"),
        ({"regroup": Regroup(step=1, ranks=(1, 2))}, r"ranks \(1, 2\) are not all below 2"),
        ({"loaded_by": 2, "special": "saved"}, "loaded_by 2 must be at least 0, and 0"),
        ({"module": "probed", "steps": (Step(overflow=1),)}, "needs special 'scaled'"),
    ],
)
def test_an_impossible_case_is_refused(wrong: dict, words: str) -> None:
    with pytest.raises(BadCaseError, match=words):
        WrapperCase(**wrong)


def test_ranks_that_a_new_group_leaves_out_stop_there() -> None:
    case = WrapperCase(ranks=3, steps=(Step(),) * 3, regroup=Regroup(step=1, ranks=(0, 2)))

    assert [case.num_steps(rank) for rank in range(3)] == [3, 1, 3]
    assert [case.present(step) for step in range(3)] == [(0, 1, 2), (0, 2), (0, 2)]


def test_a_case_with_two_worlds_is_two_cases_with_values_of_their_own() -> None:
    case = WrapperCase(ranks=4, loaded_by=2, module="normed", seed=7)

    assert case.world_sizes == (4, 2)
    assert case.saving == WrapperCase(ranks=4, module="normed", seed=7, special="saved")
    assert case.loading == WrapperCase(ranks=2, module="normed", seed=8)


def test_no_world_of_a_case_is_larger_than_claimed() -> None:
    claims = WrapperClaims(features=frozenset({WrapperFeature.FULL_STATE}), max_ranks=2)

    sizes = {case.world_sizes for case in WRAPPER_JUDGEMENTS["DPW-35"].drawn(claims, seed=0)}
    assert (2, 1) in sizes
    assert max(map(max, sizes)) == 2


def test_what_a_wrapper_has_elsewhere_only_is_no_claim_and_says_why() -> None:
    judgement = WRAPPER_JUDGEMENTS["DPW-28"]
    claims = WrapperClaims(elsewhere={WrapperFeature.MIXED_PRECISION: "no accelerator"})
    description = WrapperDescription(name="mine", version="1", claims=claims)
    plain = WrapperDescription(name="mine", version="1", claims=WrapperClaims())

    assert judgement.drawn(claims, seed=0) == ()
    elsewhere, never = why_not_judged(judgement, description), why_not_judged(judgement, plain)
    assert tells(elsewhere, "mine", "cannot run it here", "mixed_precision", "no accelerator")
    assert tells(never, "mine", "does not claim", "mixed_precision")
    assert why_not_judged(WRAPPER_JUDGEMENTS["DPW-1"], plain) == ""


def test_a_damaged_case_is_refused_with_its_source() -> None:
    with pytest.raises(BadCaseError, match=r"file\.json: not a wrapper case"):
        decode_case(b'{"module": "unheard"}', source="file.json")


def test_an_unknown_requirement_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="DPW-99"):
        wrapper_requirement("DPW-99")
