"""What crosses from stage to stage in drawn cases is what the implementation claims, under every narrow claim."""

from __future__ import annotations

import dataclasses

import pytest

from pipeconform.adapter import BoundaryClaim, Capabilities
from pipeconform.case.build.data import boundaries_of
from pipeconform.case.build.passages import leaving
from pipeconform.case.case import Case
from pipeconform.case.draw.cases import draw_case
from pipeconform.case.draw.claimed import crosses_as_claimed, is_claimed
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.registry import SUBJECTS
from pipeconform.case.focus import Focus, Limits
from tests.case.draw.drawn import choosing, drawn_under
from tests.case.examples import EVERYTHING

WIDE = EVERYTHING.boundary
NARROW = {
    "one container": dataclasses.replace(WIDE, containers=("tensor",)),
    "lists": dataclasses.replace(WIDE, containers=("tensor", "list")),
    "one input": dataclasses.replace(WIDE, inputs=1),
    "two inputs": dataclasses.replace(WIDE, inputs=2),
    "alike": dataclasses.replace(WIDE, differ=False),
    "two tensors": dataclasses.replace(WIDE, max_tensors=2),
    "three tensors": dataclasses.replace(WIDE, max_tensors=3),
    "alike, one input": dataclasses.replace(WIDE, inputs=1, differ=False),
}
SEEDS = range(4)


def claiming(boundary: BoundaryClaim) -> Capabilities:
    """Everything, with these boundaries; ranks that make their own stages choose their own boundaries."""
    return dataclasses.replace(EVERYTHING, boundary=boundary, tracing=None)


def shapes(case: Case) -> set[tuple[object, ...]]:
    right = case.without_mistakes
    return {tuple((one.shape, one.dtype) for one in boundary.tensors) for boundary in boundaries_of(right)}


@pytest.mark.parametrize("name", NARROW)
def test_what_is_drawn_crosses_as_claimed(name: str) -> None:
    boundary = NARROW[name]
    found = [case for focus in Focus for case in drawn_under(claiming(boundary), focus, SEEDS)]

    assert len(found) > 100
    for case in found:
        assert case.model.container in boundary.containers
        assert case.model.num_inputs <= boundary.most_inputs
        assert crosses_as_claimed(case.model, boundary)
        for s in range(case.num_stages - 1):
            crossing = 1 + len(case.model.carried) + len(leaving(case.model, s))
            assert crossing <= boundary.max_tensors, case


def test_boundaries_that_are_claimed_alike_have_the_same_shapes_and_dtypes() -> None:
    """Judged by executing the stages, for the subjects that send more than one tensor, or that change dtypes."""
    capabilities = claiming(NARROW["alike"])
    found = [
        case for focus in Focus for case in drawn_under(capabilities, focus, SEEDS)[::3] if focus in TOLD
    ]

    assert any(case.model.passages and case.num_stages > 2 for case in found)
    assert any(case.model.carried and case.num_stages > 2 for case in found)
    for case in found:
        assert len(shapes(case)) <= 1, case


TOLD = frozenset(
    {
        Focus.PLAIN,
        Focus.BOUNDARY,
        Focus.NO_GRAD,
        Focus.SHAPES,
        Focus.SKIP,
        Focus.GRAPHS,
        Focus.IGNORED,
        Focus.FLOAT8,
        Focus.GRADIENT_LAYOUT,
        Focus.DTYPE,
        Focus.TARGETS,
        Focus.BATCH_DIM,
        Focus.LAYOUT,
        Focus.FROZEN,
    }
)


def test_boundaries_differ_where_nothing_else_is_claimed() -> None:
    cases = drawn_under(claiming(WIDE), Focus.SHAPES, SEEDS)

    assert any(len(shapes(case)) > 1 for case in cases if case.num_stages > 2)


def test_a_schedule_can_have_boundaries_of_its_own() -> None:
    first, *others = EVERYTHING.schedules
    own = dataclasses.replace(first, boundary=BoundaryClaim(dtypes=("float32",)))
    capabilities = dataclasses.replace(claiming(WIDE), schedules=(own, *others))
    limits = Limits(capabilities=capabilities, max_ranks=4)

    def drawn(claim, focus):
        return [draw_case(Drawing(choosing(seed), limits, claim), SUBJECTS[focus]) for seed in range(8)]

    assert {case.model.dtype for case in drawn(own, Focus.PLAIN)} == {"float32"}
    assert {case.model.dtype for case in drawn(others[0], Focus.PLAIN)} == {"float32", "float64"}
    assert not is_claimed(Focus.SHAPES, own, capabilities)
    assert is_claimed(Focus.SHAPES, others[1], capabilities)


def test_a_placement_that_the_engine_chooses_is_not_drawn_otherwise() -> None:
    (claim,) = (one for one in EVERYTHING.schedules if one.name == "V")
    own = dataclasses.replace(claim, takes_placement=False)

    assert is_claimed(Focus.MISPLACED, claim, EVERYTHING)
    assert not is_claimed(Focus.MISPLACED, own, EVERYTHING)
