"""Packages that a vendor would like to have: easy cases, claims that cannot be drawn from, files that do not belong."""

import dataclasses

import msgspec
import pytest

from pipeconform.adapter import Capabilities, ScheduleClaim
from pipeconform.campaign.kept import JudgedCases
from pipeconform.certificate.bounds import require_bounded
from pipeconform.certificate.checks import check_contents, list_of
from pipeconform.certificate.contents import claims_of_result, digest_of
from pipeconform.certificate.drawing import num_draws
from pipeconform.certificate.listed import listed
from pipeconform.errors import TooLargeError
from pipeconform.report.result import Implementation
from pipeconform.spec import certification_level
from tests.certificate.conftest import LEVEL, as_read, sound

replaced = msgspec.structs.replace


def texts(contents):
    return [str(doubt) for doubt in check_contents(contents).doubts]


def easy(contents, is_easy):
    """Every case replaced by an easy one of the same cell, so often that each count is what it was."""
    expected = list_of(LEVEL, contents)
    every = expected.cases
    judged = []
    for one in contents.judged:
        usable = [digest for digest in one.digests if is_easy(every[digest])]
        spare = [digest for digest, case in every.items() if is_easy(case) and case.schedule == one.schedule]
        digests = tuple(dict.fromkeys([*usable, *spare]))[: len(one.digests)]
        judged.append(replaced(one, digests=digests))
    named = {digest for one in judged for digest in one.digests}
    cases = {digest: data for digest, data in contents.cases.items() if digest in named}
    return replaced(contents, judged=tuple(judged), cases=cases)


@pytest.mark.parametrize(
    "is_easy",
    [
        lambda case: case.num_ranks == 1,
        lambda case: all(run.num_microbatches == 1 for run in case.runs),
    ],
    ids=["one rank", "one microbatch"],
)
def test_easy_cases_in_the_place_of_the_level_s_are_refused_without_running_anything(contents, is_easy):
    found = texts(easy(contents, is_easy))

    assert any(text.startswith("judged.json: digests: FWD-1 under GPipe: ") for text in found)
    assert any("missing, though the level judges it" in text for text in found)


def test_a_case_of_our_own_is_none_of_the_level_s(make, contents):
    case = make.case(p=1, m=1)
    first, *others = contents.judged
    changed = JudgedCases(
        requirement=first.requirement,
        schedule=first.schedule,
        variant=first.variant,
        digests=(case.digest, *first.digests[1:]),
    )
    forged = replaced(
        contents,
        judged=(changed, *others),
        cases=contents.cases | {case.digest: msgspec.json.encode(case)},
    )
    found = texts(forged)

    assert f"cases/{case.digest}.json: not drawn for any requirement of the level" in found
    assert (
        f"judged.json: digests: FWD-1 under GPipe: {case.digest} is not among the cases drawn for it" in found
    )


def test_counts_that_agree_with_each_other_and_not_with_the_list_are_refused(contents):
    first, *others = contents.result.cells
    fewer = replaced(first, judgements=2, distinct_cases=2, counts={"p=2,v=1": 2}, microbatches={"more": 2})
    totals = contents.result.totals
    totals = replaced(totals, judgements=totals.judgements - first.judgements + 2)
    forged = replaced(contents, result=replaced(contents.result, cells=(fewer, *others), totals=totals))
    found = texts(forged)

    for field in ("judgements", "distinct_cases", "counts", "microbatches"):
        assert any(text.startswith(f"result.json: cells.{field}: FWD-1 under GPipe: ") for text in found)


def test_a_requirement_that_the_claims_include_cannot_be_called_unclaimed(contents):
    first, *others = contents.result.cells
    said = replaced(
        first, status="not_claimed", reason="no", judgements=0, executions=0, distinct_cases=0, counts={}
    )
    forged = replaced(contents, result=replaced(contents.result, cells=(said, *others)))

    assert any(
        "FWD-1 under GPipe: not_claimed, but according to the claims it is judged on" in one
        for one in texts(forged)
    )


def with_claims(contents, capabilities):
    """Claims changed wherever they stand."""
    implementation = replaced(contents.result.implementation, capabilities=as_read(capabilities))
    result = replaced(contents.result, implementation=implementation)
    certificate = replaced(contents.certificate, claims_digest=digest_of(claims_of_result(result)))
    return replaced(contents, result=result, certificate=certificate)


def test_narrower_claims_than_those_that_were_judged_are_refused(contents):
    claims = msgspec.convert(contents.result.implementation.capabilities, Capabilities)
    narrow = dataclasses.replace(
        claims, schedules=tuple(dataclasses.replace(one, min_ranks=2) for one in claims.schedules)
    )
    found = texts(with_claims(contents, narrow))

    assert any(text.startswith("judged.json: digests: FWD-1 under GPipe: ") for text in found)


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"schedules": tuple(ScheduleClaim(name=f"S{i}") for i in range(65))}, "65 entries; at most 64"),
        ({"schedules": (ScheduleClaim(name="S"), ScheduleClaim(name="S"))}, "S appears 2 times"),
        (
            {"schedules": (ScheduleClaim(name="S", min_microbatches_per_stage=256),)},
            "S: at least 2048 microbatches on 4 ranks with 2 stages each; a schedule may need 1024",
        ),
        (
            {"schedules": (ScheduleClaim(name="S", stages_per_rank=(0,)),)},
            "S: 0 stages per rank; between 1 and 1024",
        ),
    ],
)
def test_claims_that_would_take_long_to_draw_from_are_refused_before_anything_is_drawn(
    contents, claims, words
):
    capabilities = Capabilities(**claims)

    with pytest.raises(TooLargeError, match=words):
        require_bounded(capabilities)
    found = texts(with_claims(contents, capabilities))
    assert any(one.startswith("result.json: implementation.capabilities: ") and words in one for one in found)


@pytest.mark.parametrize(
    "schedule",
    [
        {"name": "S", "min_microbatches": 10**7},
        {"name": "S", "stages_per_rank": list(range(1, 10**5))},
        {"name": "S" * 2001},
    ],
    ids=["microbatches", "stages", "name"],
)
def test_claims_that_no_adapter_can_make_are_a_doubt(contents, schedule):
    found = texts(with_claims(contents, {"schedules": [schedule]}))

    assert any(one.startswith("result.json: implementation.capabilities: ") for one in found)


def test_so_many_cases_that_nobody_could_wait_are_not_drawn(monkeypatch):
    monkeypatch.setattr("pipeconform.certificate.drawing.MOST_DRAWN", 5)

    with pytest.raises(
        TooLargeError, match="cases would have to be drawn to determine what level Forward judges"
    ):
        num_draws(LEVEL, Capabilities(schedules=(ScheduleClaim(name="GPipe"),)))


def test_claims_from_which_no_case_can_be_drawn_are_a_doubt_and_no_mistake_of_ours(contents, monkeypatch):
    def fails(*_, **__):
        raise ValueError("empty range")

    claims = msgspec.convert(contents.result.implementation.capabilities, Capabilities)
    monkeypatch.setattr("pipeconform.certificate.listed.num_draws", fails)
    changed = with_claims(contents, dataclasses.replace(claims, patience=2.5))

    assert any(
        "no cases can be drawn from these claims: ValueError: empty range" in one for one in texts(changed)
    )


def test_what_a_wrapper_is_judged_on_follows_from_its_claims():
    from pipeconform.wrapper import WrapperClaims

    one = Implementation(
        reference="mine.py:W", name="mine", version="1", kind="wrapper", capabilities=as_read(WrapperClaims())
    )
    found = listed(certification_level("wrapper"), one, max_ranks=3)

    asked = [cell for cell in found.cells if cell.status is None]
    assert {"DPW-1"} <= {cell.requirement for cell in asked}
    assert all(cell.cases and cell.microbatches == {} for cell in asked)
    assert {cell.status for cell in found.cells} == {None, "not_claimed"}


@pytest.mark.parametrize("field", ["canaries", "environment", "judged", "cases", "others"])
def test_a_part_of_another_run_does_not_fit(make, contents, field):
    """Of the same implementation, even; cases and sources are the same then, and make no difference."""
    other = sound(make, run="b")
    mixed = replaced(contents, **{field: getattr(other, field)})

    assert bool(texts(mixed)) == (field in ("canaries", "environment"))


def test_a_size_of_5000_digits_is_no_size(contents):
    first, *others = contents.result.cells
    counts = {f"p={'9' * 5000},v={'9' * 5000}": first.judgements}
    changed = replaced(contents.result, cells=(replaced(first, counts=counts), *others))

    assert any("cells.counts" in one for one in texts(replaced(contents, result=changed)))
