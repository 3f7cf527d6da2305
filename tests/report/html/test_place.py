"""The place of a violation and the computations it speaks of."""

import pytest

from pipeconform.judge.evidence import Finding
from pipeconform.report.html.place import Place, place_of, suspects
from pipeconform.schedule import Kind


@pytest.mark.parametrize("known", [{}, {"rank": 3}, {"step": 0, "rank": 10, "stage": 2, "microbatch": 1}])
def test_a_place_is_read_back_from_what_a_finding_says(make, known):
    where = Finding(kind="x", message="y", **known).where()

    assert place_of(make.violation("FWD-1", "GPipe", where=where)) == Place(**known)


def test_a_place_is_told_from_the_outside_in(make):
    place = Place(step=1, rank=0, stage=1, microbatch=2)

    assert place.parts(make.case()) == ("step 1 (zero_grad)", "rank 0", "stage 1", "microbatch 2")
    assert Place(step=9).parts(make.case()) == ("step 9",)


def test_ranks_of_the_world_and_of_the_pipeline_are_told_apart(make):
    case = make.case()
    world = make.changed(case.world, size=4, pipeline_ranks=(1, 3))
    case = make.changed(case, world=world)

    assert [Place(rank=rank).pipeline_rank(case) for rank in (0, 1, 2, 3, None)] == [None, 0, None, 1, None]


@pytest.mark.parametrize(
    ("signature", "where", "kinds"),
    [
        ("output value", "step 0, rank 1, microbatch 1", "F"),
        ("gradient value", "step 0, stage 1", "BW"),
        ("input gradient value", "step 0, rank 0, stage 0, microbatch 1", "BI"),
        ("scale", "step 0, stage 0", "BW"),
        ("output value", "step 0, rank 1", ""),
        ("gradient value", "", ""),
    ],
)
def test_the_computations_at_fault_follow_from_what_is_wrong(make, signature, where, kinds):
    violation = make.violation("TRN-1", "GPipe", signature=signature, where=where)

    assert suspects(violation, place_of(violation)) == {Kind[letter] for letter in kinds}


def test_an_error_accuses_no_computation(make):
    violation = make.violation("TRN-1", "GPipe", status="error", where="rank 0, stage 0")

    assert suspects(violation, place_of(violation)) == frozenset()


@pytest.mark.parametrize(
    ("first_wrong", "known"),
    [
        ((1, 1), {"stage": 1, "microbatch": 2}),
        ((0, 0), {}),  # what ran there cannot be read
        ((1, 2), {}),  # missing at the end
        ((7, 0), {}),
        (None, {}),
    ],
)
def test_the_first_wrong_computation_says_what_the_words_leave_out(make, first_wrong, known):
    violation = make.violation(
        "SCH-2",
        "GPipe",
        where="step 0, rank 1",
        timeline=(("?",), ("1F0", "1B2")),
        first_wrong=first_wrong,
    )

    assert place_of(violation) == Place(step=0, rank=1, **known)


def test_words_about_the_place_come_before_what_the_timeline_says(make):
    violation = make.violation(
        "SCH-2", "GPipe", where="rank 1, stage 0", timeline=((), ("1F2",)), first_wrong=(1, 0)
    )

    assert place_of(violation) == Place(rank=1, stage=0, microbatch=2)
