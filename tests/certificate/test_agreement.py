"""What a package says of its cells and cases is compared with the list that is drawn again from its claims."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from pipeconform.campaign.kept import JudgedCases
from pipeconform.certificate.agreement import list_doubts
from pipeconform.certificate.checks import list_of
from pipeconform.certificate.contents import Contents
from pipeconform.report.result import Pairs, Together
from tests.case.examples import small_case
from tests.certificate.conftest import LEVEL, implementation, sound, violated

replaced = msgspec.structs.replace


@pytest.fixture(scope="module")
def narrow():
    """What claims no keyword arguments: of FWD-9 and FWD-22, nothing is claimed."""
    one = implementation()
    claims = dict(one.capabilities)
    claims["features"] = [name for name in claims["features"] if name != "kwargs"]
    return replaced(one, capabilities=claims)


def texts(contents: Contents) -> list[str]:
    return [str(doubt) for doubt in list_doubts(contents, list_of(LEVEL, contents))]


def with_cell(contents: Contents, index: int, **fields) -> Contents:
    cells = list(contents.result.cells)
    cells[index] = replaced(cells[index], **fields)
    return replaced(contents, result=replaced(contents.result, cells=tuple(cells)))


def with_totals(contents: Contents, **fields) -> Contents:
    totals = replaced(contents.result.totals, **fields)
    return replaced(contents, result=replaced(contents.result, totals=totals))


def with_judged(contents: Contents, index: int, change: Callable[[tuple[str, ...]], tuple[str, ...]]):
    judged = list(contents.judged)
    judged[index] = replaced(judged[index], digests=change(judged[index].digests))
    return replaced(contents, judged=tuple(judged))


# ------------------------------------------------------------------------------------------------- cells


def test_cells_that_are_not_claimed_agree_if_they_say_so_and_nothing_else(make, narrow):
    contents = sound(make, judged=narrow)
    index = next(n for n, one in enumerate(contents.result.cells) if one.status == "not_claimed")
    name = f"{contents.result.cells[index].requirement} under {contents.result.cells[index].schedule}"

    assert texts(contents) == []
    for fields in ({"reason": "no time"}, {"compared": 3}):
        assert texts(with_cell(contents, index, **fields)) == [
            f"result.json: cells: {name}: not_claimed, but with counts or with another reason"
        ]
    (doubt,) = texts(with_cell(contents, index, status="skipped"))
    assert doubt.startswith(
        f"result.json: cells.status: {name}: skipped, but according to the claims it is not_claimed: toy GPipe"
    )


def test_a_cell_s_numbers_are_those_of_the_cases_and_each_is_named_by_its_field(contents):
    first = contents.result.cells[0]
    drawn = ", ".join(f"{key}: {number}" for key, number in sorted(first.counts.items()))

    assert texts(with_cell(contents, 0, counts={})) == [
        f"result.json: cells.counts: FWD-1 under GPipe: none, but the level's cases give {drawn}"
    ]
    for field in ("counts", "microbatches", "distinct_cases"):
        more = getattr(first, field)
        more = more + 1 if isinstance(more, int) else {**more, "other": 1}
        (doubt,) = texts(with_cell(contents, 0, **{field: more}))
        assert doubt.startswith(f"result.json: cells.{field}: FWD-1 under GPipe: ")


def test_subjects_without_cases_are_those_of_the_claims(contents):
    assert texts(with_cell(contents, 0, without=("dropout",))) == [
        "result.json: cells.without: FWD-1 under GPipe: according to the claims, subjects without cases: none"
    ]


def test_a_judged_cell_has_no_case_at_which_it_could_not_be_judged(contents):
    assert texts(with_cell(contents, 0, case=small_case())) == [
        "result.json: cells.case: FWD-1 under GPipe: passed, but with a case at which it could not be judged"
    ]


def test_a_case_that_shows_nothing_wrong_is_executed_four_times_at_most(make, contents):
    """Once to be judged, and three times to be repeated; what shows a violation is executed as often as it takes."""
    first = contents.result.cells[0]

    def executed(contents: Contents, number: int) -> Contents:
        others = contents.result.totals.executions - contents.result.cells[0].executions
        return with_totals(with_cell(contents, 0, executions=number), executions=others + number)

    most = 4 * first.judgements
    assert texts(executed(contents, most)) == []
    assert texts(executed(contents, most + 1)) == [
        f"result.json: cells.executions: FWD-1 under GPipe: {most + 1} executions of {first.judgements} cases in "
        "which nothing was wrong"
    ]
    assert texts(executed(violated(make, contents), most + 1)) == []


def test_cells_in_another_order_are_a_doubt(contents):
    cells = contents.result.cells
    turned = replaced(contents.result, cells=(cells[1], cells[0], *cells[2:]))

    assert texts(replaced(contents, result=turned)) == [
        "result.json: cells: not in the order of the standard and of the claims"
    ]


def test_a_cell_of_another_level_does_not_belong(make, contents):
    other = make.cell("TRN-1", "GPipe", judgements=0, executions=0, distinct_cases=0, counts={})
    more = replaced(contents.result, cells=(*contents.result.cells, other))

    assert texts(replaced(contents, result=more)) == [
        "result.json: cells: TRN-1 under GPipe (default) does not belong to the level"
    ]


# -------------------------------------------------------------------------------------------- judged cases


def test_cases_of_a_cell_that_the_level_does_not_judge_are_a_doubt(contents):
    other = JudgedCases(requirement="TRN-1", schedule="GPipe", variant="default", digests=())

    assert texts(replaced(contents, judged=(*contents.judged, other))) == [
        "judged.json: TRN-1 under GPipe is not judged by the level"
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda digests: digests[1:], "{first} is drawn for it, but missing"),
        (lambda digests: digests[2:], "{first}, {second} are drawn for it, but missing"),
        (lambda digests: (*digests, "beef"), "beef is not among the cases drawn for it"),
        (
            lambda digests: (*digests, "a", "b", "c"),
            "a, b, c are not among the cases drawn for it",
        ),
        (
            lambda digests: (*digests, "a", "b", "c", "d"),
            "a, b, c and 1 more are not among the cases drawn for it",
        ),
        (lambda digests: digests[::-1], "the cases are not in the order in which they are drawn"),
    ],
    ids=["one less", "two less", "one more", "three more", "four more", "turned round"],
)
def test_other_cases_than_those_that_are_drawn_are_named(contents, change, words):
    first, second, *_ = contents.judged[0].digests

    assert texts(with_judged(contents, 0, change)) == [
        f"judged.json: digests: FWD-1 under GPipe: {words.format(first=first, second=second)}"
    ]


# -------------------------------------------------------------------------------------------------- totals


@pytest.mark.parametrize(
    "field", ["judgements", "executions", "distinct_cases", "distinct_cases_several_ranks"]
)
@pytest.mark.parametrize("more", [-1, 1])
def test_totals_are_neither_less_nor_more_than_what_cells_and_cases_give(contents, field, more):
    number = getattr(contents.result.totals, field)
    found = texts(with_totals(contents, **{field: number + more}))

    assert f"result.json: totals.{field}: {number + more}, but the cells and cases give {number}" in found


@pytest.mark.parametrize("field", ["distinct_cases", "distinct_cases_several_ranks"])
def test_cases_that_made_a_violation_smaller_may_be_counted_too(make, contents, field):
    made = violated(make, contents)
    number = getattr(made.result.totals, field)

    assert not [one for one in texts(with_totals(made, **{field: number + 1})) if f"totals.{field}" in one]
    assert (
        f"result.json: totals.{field}: {number - 1}, but the cells and cases give {number} or more"
    ) in texts(with_totals(made, **{field: number - 1}))


@pytest.mark.parametrize("field", ["judgements", "executions"])
def test_judgements_and_executions_are_counted_by_cell_even_where_something_is_wrong(make, contents, field):
    made = violated(make, contents)
    number = getattr(made.result.totals, field)

    assert any(
        f"totals.{field}: {number + 1}" in one for one in texts(with_totals(made, **{field: number + 1}))
    )


def test_there_are_no_more_cases_than_executions_and_no_more_on_several_ranks_than_cases(make, contents):
    made = violated(make, contents)
    totals = made.result.totals
    impossible = "result.json: totals: more distinct cases than executions, or than cases"

    for fields, is_told in (
        ({"distinct_cases": totals.executions}, False),
        ({"distinct_cases": totals.executions + 1}, True),
        ({"distinct_cases_several_ranks": totals.distinct_cases}, False),
        ({"distinct_cases_several_ranks": totals.distinct_cases + 1}, True),
    ):
        assert (impossible in texts(with_totals(made, **fields))) is is_told


# --------------------------------------------------------------------------------- pairs, and what meets what


def _pairs_of(contents: Contents) -> tuple[int, Pairs]:
    """A kind of pairs that the level's cases do not reach completely, and its place."""
    return next(
        (index, one)
        for index, one in enumerate(contents.result.totals.pairs)
        if 0 < one.reached < one.reachable and len(one.missing) > 1
    )


def _with_pairs(contents: Contents, index: int, one: Pairs) -> Contents:
    pairs = list(contents.result.totals.pairs)
    pairs[index] = one
    return with_totals(contents, pairs=tuple(pairs))


def test_pairs_are_exactly_those_that_the_cases_reach(contents):
    index, one = _pairs_of(contents)
    more = replaced(one, reached=one.reached + 1)

    assert texts(_with_pairs(contents, index, more)) == [
        "result.json: totals.pairs: differs from what the level's cases reach"
    ]


def _honest_more(one: Pairs) -> Pairs:
    """One pair more, as a case that made a violation smaller may reach it."""
    left = one.reachable - one.reached - 1
    return replaced(one, reached=one.reached + 1, missing=one.missing[: min(len(one.missing), left)])


@pytest.mark.parametrize(
    ("change", "is_possible"),
    [
        (lambda one: one, True),
        (_honest_more, True),
        (lambda one: replaced(one, reached=one.reached - 1), False),
        (lambda one: replaced(one, reached=one.reachable + 1, missing=()), False),
        (lambda one: replaced(one, reached=one.reachable, missing=()), True),
        (lambda one: replaced(one, reachable=one.reachable + 1), False),
        (lambda one: replaced(one, missing=one.missing[:-1]), False),
        (lambda one: replaced(one, missing=one.missing[::-1]), False),
        (lambda one: replaced(one, missing=(one.missing[0],) * len(one.missing)), False),
        (lambda one: replaced(one, missing=(("\x1b", "a"), *one.missing[1:])), False),
        (lambda one: replaced(one, missing=(("", "a"), *one.missing[1:])), False),
    ],
    ids=[
        "the same",
        "one more",
        "one less",
        "more than there are",
        "all",
        "more that could be",
        "one missing less",
        "turned round",
        "repeated",
        "unprintable",
        "blank",
    ],
)
def test_with_a_violation_pairs_are_at_least_those_that_the_cases_reach(make, contents, change, is_possible):
    made = violated(make, contents)
    index, one = _pairs_of(made)
    found = [text for text in texts(_with_pairs(made, index, change(one))) if "totals.pairs" in text]

    assert found == (
        []
        if is_possible
        else [f"result.json: totals.pairs: {' × '.join(one.of)}: differs from what the level's cases reach"]
    )


def test_with_a_violation_each_kind_of_pairs_is_there_once(make, contents):
    made = violated(make, contents)
    first, *others = made.result.totals.pairs
    number = len(others) + 1

    for pairs in ((first, *others, first), (*others, replaced(first, of=("a", "b")), first)):
        assert f"result.json: totals.pairs: {number + 1}, but there are {number}" in texts(
            with_totals(made, pairs=pairs)
        )
    assert texts(with_totals(made, pairs=tuple(others))) == [
        f"result.json: totals.pairs: {' × '.join(first.of)}: differs from what the level's cases reach",
        f"result.json: totals.pairs: {number - 1}, but there are {number}",
    ]


@pytest.fixture
def meeting(monkeypatch):
    """Two subjects meet two others, each under one of two schedules (no cases of level Forward have such)."""
    given = (
        Together(of=("a", "b"), under=("GPipe",), not_under=("1F1B",)),
        Together(of=("a", "c"), under=("1F1B",), not_under=("GPipe",)),
    )
    monkeypatch.setattr("pipeconform.certificate.agreement.meetings", lambda *_: given)
    return given


DIFFERS = ["result.json: totals.together: differs from what the level's cases reach"]


def test_what_meets_what_is_what_the_cases_show(contents, meeting):
    both = replaced(meeting[0], under=("GPipe", "1F1B"), not_under=())

    assert texts(with_totals(contents, together=meeting)) == []
    for together in ((), meeting[:1], meeting[::-1], (both, meeting[1])):
        assert texts(with_totals(contents, together=together)) == DIFFERS


def test_with_a_violation_more_may_meet_and_no_less(make, contents, meeting):
    made, (first, second) = violated(make, contents), meeting
    both = replaced(first, under=("GPipe", "1F1B"), not_under=())

    for together in (meeting, (both, second)):
        assert texts(with_totals(made, together=together)) == []
    for together in (
        (),
        meeting[:1],
        meeting[::-1],
        (replaced(first, under=(), not_under=("GPipe", "1F1B")), second),
        (first, replaced(second, under=("GPipe",), not_under=("1F1B",))),
        (replaced(first, under=("GPipe", "Other")), second),
        (replaced(first, not_under=()), second),
    ):
        assert texts(with_totals(made, together=together)) == DIFFERS
