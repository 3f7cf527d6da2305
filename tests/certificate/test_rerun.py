"""A sample of a package is executed again on a real implementation; what comes out otherwise is a doubt."""

import dataclasses
import random
from contextlib import nullcontext

import msgspec
import pytest
from pipeconform.reference_impl import faults

from pipeconform.campaign.options import Options
from pipeconform.campaign.rejudge import Again, Question, rejudge
from pipeconform.certificate.canaries import faults_of, run_canaries
from pipeconform.certificate.checks import list_of
from pipeconform.certificate.rerun import rerun, sample
from pipeconform.spec import certification_level
from tests.certificate.conftest import violated

FAULT = "pipeconform.reference_impl.faults.wire:RoundedToBfloat16"


@pytest.fixture
def expected(contents):
    return list_of(certification_level("forward"), contents)


def test_a_sample_is_of_the_list_and_of_cells_that_are_said_to_be_met(make, contents, expected):
    failed = violated(make, contents)
    drawn = sample(expected, failed, 10_000, rng=random.Random(0))

    listed = {cell.key: set(cell.digests) for cell in expected.cells}
    wrong = failed.result.cells[0]
    assert all(one.case.digest in listed[one.requirement, one.case.schedule, one.variant] for one in drawn)
    assert (wrong.requirement, wrong.schedule) not in {(one.requirement, one.case.schedule) for one in drawn}
    assert len(drawn) == sum(map(len, listed.values())) - wrong.distinct_cases


def test_the_cases_of_a_package_have_no_say_in_the_sample(contents, expected):
    """Easy cases in the place of all others: what is executed is what was to be judged."""
    emptied = msgspec.structs.replace(
        contents,
        cases={},
        judged=tuple(msgspec.structs.replace(one, digests=()) for one in contents.judged),
    )

    assert sample(expected, emptied, 9, rng=random.Random(3)) == sample(
        expected, contents, 9, rng=random.Random(3)
    )


def test_a_sample_is_spread_and_seldom_of_what_shows_little(contents, expected):
    def tells(case):
        return case.num_ranks > 1 and any(run.num_microbatches > 1 for run in case.runs)

    drawn = [one for seed in range(20) for one in sample(expected, contents, 20, rng=random.Random(seed))]
    every = [case for cell in expected.cells for case in cell.cases]

    for seed in range(20):
        one = sample(expected, contents, len(expected.cells), rng=random.Random(seed))
        assert len({(q.requirement, q.case.schedule) for q in one}) == len(expected.cells)
    assert sum(tells(q.case) for q in drawn) / len(drawn) > sum(map(tells, every)) / len(every) + 0.15


def test_equal_seeds_draw_equal_samples(contents, expected):
    one, same, other = (sample(expected, contents, 5, rng=random.Random(seed)) for seed in (1, 1, 2))

    assert one == same
    assert one != other


@pytest.mark.parametrize(("implementation", "times"), [("reference", 0), (FAULT, 2)])
def test_a_case_is_judged_as_often_as_asked(make, implementation, times):
    question = Question(requirement="FWD-1", variant="default", case=make.case())
    (again,) = rejudge([question], options=Options(implementation=implementation), times=2)

    assert len(again.shown) == 2
    shown = [status for one in again.shown for status, _ in one]
    assert shown.count("failed") == times


def test_canaries_of_a_requirement_are_detected_here():
    begun, told = [], []
    canaries = run_canaries(
        faults_of(["TRN-7"]),
        options=Options(implementation="reference"),
        shard="1/2",
        run_id="f" * 32,
        begin=begun.append,
        tell=told.append,
    )

    assert canaries
    assert told == list(canaries)
    assert [fault.name for fault in begun] == [one.fault for one in canaries]
    assert {one.requirement for one in canaries} == {"TRN-7"}
    assert all(one.detected and one.shown for one in canaries)
    assert {(one.shard, one.run_id) for one in canaries} == {("1/2", "f" * 32)}


def test_a_canary_that_sings_no_more_is_told(monkeypatch):
    """A fault that shows as another status than it must is not detected."""
    fault = faults.FAULTS["inputs-forgotten"]
    changed = {"inputs-forgotten": dataclasses.replace(fault, expected_status="hung")}
    monkeypatch.setattr(faults, "FAULTS", changed)
    (canary,) = run_canaries(faults_of(["TRN-7"]), options=Options(implementation="reference"))

    assert not canary.detected
    assert any(text.startswith("failed: ") for text in canary.shown)


# ------------------------------------------------------------------ without executing anything


@pytest.fixture
def again(make, contents, monkeypatch):
    """The doubts of a rerun on an implementation that is there, and shows something."""

    def doubts(shown=(), *, engine=None, **fields):
        question = Question(requirement="FWD-1", variant="default", case=make.case())
        here = msgspec.structs.replace(contents.result.implementation, **fields)
        engine = contents.certificate.engine if engine is None else engine
        module = "pipeconform.certificate.rerun"
        monkeypatch.setattr(f"{module}.campaign_of", lambda options: nullcontext("campaign"))
        monkeypatch.setattr(f"{module}.implementation_of", lambda campaign: here)
        monkeypatch.setattr(f"{module}.engine_in", lambda campaign: engine)
        monkeypatch.setattr(
            f"{module}.rejudge",
            lambda questions, *, options: [
                Again(question=one, shown=(frozenset(shown),)) for one in questions
            ],
        )
        options = Options(implementation="mine.py:MyAdapter")
        return [str(doubt) for doubt in rerun([question], contents, options=options)], question.case.digest

    return doubts


def test_the_same_implementation_that_shows_nothing_is_in_no_doubt(again):
    assert again()[0] == []


@pytest.mark.parametrize("field", ["name", "version", "source_digest"])
def test_another_implementation_is_told_by_what_differs(again, contents, field):
    said = getattr(contents.result.implementation, field)

    assert again(**{field: "other"})[0] == [
        f"result.json: implementation.{field}: {said!r}, but mine.py:MyAdapter is 'other'"
    ]


@pytest.mark.parametrize(("field", "what"), [("capabilities", "claims"), ("errors", "promises")])
def test_other_claims_and_promises_are_told_and_their_order_in_the_file_is_not(again, contents, field, what):
    said = getattr(contents.result.implementation, field)

    assert again(**{field: dict(reversed(said.items()))})[0] == []
    assert again(**{field: {**said, "more": 1}})[0] == [
        f"result.json: implementation.{field}: mine.py:MyAdapter {what} something else"
    ]


def test_files_behind_the_adapter_are_told_that_are_new_gone_or_others(again, contents):
    mine, torch = contents.certificate.engine
    new = msgspec.structs.replace(mine, name="another", digest="3" * 64)
    other = msgspec.structs.replace(torch, digest="4" * 64, version="2.0")
    told = "certificate.json: engine: "

    assert again(engine=(mine,))[0] == [
        f"{told}torch has the digest 222222222222 {torch.version}, here it is not used"
    ]
    assert again(engine=(new, mine, torch))[0] == [f"{told}another is not named, here it has 333333333333"]
    assert again(engine=(mine, other))[0] == [
        f"{told}torch has the digest 222222222222 {torch.version}, here it has 444444444444 2.0"
    ]
    assert again(engine=())[0] == [
        f"{told}mine has the digest 111111111111, here it is not used",
        f"{told}torch has the digest 222222222222 {torch.version}, here it is not used",
    ]


def test_a_case_that_was_met_and_now_shows_something_is_told_with_all_that_it_shows(again):
    doubts, digest = again({("hung", "hang"), ("failed", "output value")})

    shown = "failed: output value, hung: hang"
    assert doubts == [
        f"result.json: cells.status: FWD-1 under GPipe, case {digest} passed, now shows {shown}"
    ]


def test_no_more_judgements_are_sampled_than_there_are_and_each_once(contents, expected):
    number = sum(len(cell.digests) for cell in expected.cells)

    for asked, found in ((0, 0), (1, 1), (number, number), (number + 1, number)):
        drawn = sample(expected, contents, asked, rng=random.Random(0))
        assert len(drawn) == found
        assert (
            len({(one.requirement, one.variant, one.case.digest, one.case.schedule) for one in drawn})
            == found
        )
