"""Which pairs of properties cases have, and which they could have had."""

import dataclasses

import pytest

from pipeconform.adapter import Capabilities, MicrobatchRule, ScheduleClaim
from pipeconform.adapters.torch_pipelining import TorchPipelining
from pipeconform.campaign.corpus import Corpus, drawn
from pipeconform.campaign.pairs import boundary_kind, pairwise, points_of, reachable_points
from pipeconform.case import blocks
from pipeconform.case.case import Case, Eval, Model, Passage, Stage, Train, World
from pipeconform.case.focus import Focus, Limits
from pipeconform.report.result import Pairs
from tests.case.examples import EVERYTHING

LIMITS = Limits(capabilities=TorchPipelining().describe().capabilities, max_ranks=2)


TRAIN = Train(batch_size=4, num_microbatches=2)


def case(*, stages=2, program=(TRAIN,), **model):
    return Case(
        model=Model(width=2, stages=(Stage(blocks=(blocks.Linear(),)),) * stages, **model),
        schedule="GPipe",
        world=World(size=stages, pipeline_ranks=tuple(range(stages))),
        program=program,
    )


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (case(), "one tensor"),
        (case(stages=1), "none"),
        (case(container="tuple", carried=("stream",)), "several tensors"),
        (case(container="tuple", carried=("stream", "mask")), "without gradient"),
        (case(dtype="bfloat16"), "16 bits"),
        (case(view_outputs=True), "views"),
        (case(container="tuple", passages=(Passage(kind="stream", source=0, last=1),)), "skip"),
        (case(container="tuple", passages=(Passage(kind="flat", source=0, last=1),)), "other shapes"),
        (case(container="tuple", passages=(Passage(kind="float8", source=0, last=1),)), "float8"),
        (case(container="tuple", passages=(Passage(kind="complex", source=0, last=1),)), "complex"),
    ],
)
def test_a_boundary_has_the_kind_of_its_rarest_property(made, kind):
    assert boundary_kind(made) == kind


def test_a_case_has_a_point_for_every_class_of_m():
    steps = (Train(batch_size=4, num_microbatches=2), Eval(batch_size=4, num_microbatches=1))

    assert points_of(case(program=steps)) == {
        ("GPipe", "2", "1", "equal", "one tensor"),
        ("GPipe", "2", "1", "one", "one tensor"),
    }


def test_what_is_drawn_can_be_reached():
    """The points of drawn cases are among those that are said to be reachable, for every kind of boundary."""
    reachable = reachable_points(LIMITS, ["GPipe", "Interleaved1F1B"])
    claim = LIMITS.capabilities.schedule("Interleaved1F1B")
    for focus in (Focus.PLAIN, Focus.BOUNDARY, Focus.NO_GRAD, Focus.DTYPE, Focus.SKIP, Focus.SHAPES):
        for one in drawn(Corpus(limits=LIMITS, schedule=claim, focus=focus, seed=0, size=8)):
            assert points_of(one) <= reachable, focus

    assert {point[0] for point in reachable} == {"GPipe", "Interleaved1F1B"}
    assert {point[1] for point in reachable} == {"1", "2"}
    assert not any(point[4] == "one tensor" and point[1:3] == ("1", "1") for point in reachable)


def test_every_combination_that_is_claimed_can_be_reached():
    """One stage has no boundary, two have every kind that crosses but a skip, which needs a stage between."""
    schedule = ScheduleClaim(name="R", stages_per_rank=(1, 2), microbatches=MicrobatchRule.EVEN)
    claims = dataclasses.replace(EVERYTHING, schedules=(schedule,))
    two = ["one tensor", "several tensors", "without gradient", "16 bits", "views", "other shapes"]
    two += ["float8", "complex"]
    kinds = {("1", "1"): ["none"], ("1", "2"): two, ("2", "1"): two, ("2", "2"): [*two, "skip"]}

    assert reachable_points(Limits(capabilities=claims, max_ranks=2), ["R", "not claimed"]) == {
        ("R", *shape, number, kind)
        for shape, several in kinds.items()
        for number in (["more"] if shape[0] == "1" else ["equal", "more"])
        for kind in several
    }


def test_a_class_that_has_one_number_of_microbatches_can_be_reached():
    """In whole rounds of four, at most eight."""
    rounds = ScheduleClaim(name="R", min_ranks=4, microbatches=MicrobatchRule.MULTIPLE_OF_RANKS)
    limits = Limits(capabilities=Capabilities(schedules=(rounds,)), min_ranks=4, max_ranks=4)

    assert {point[3] for point in reachable_points(limits, ["R"])} == {"equal", "more"}


def test_pairs_are_counted_among_those_that_could_be_reached():
    reachable = {("A", "1", "1", "more", "x"), ("A", "2", "1", "more", "x"), ("B", "1", "1", "more", "x")}
    found = pairwise({("A", "1", "1", "more", "x"), ("C", "9", "1", "more", "x")}, reachable)

    assert found[0] == Pairs(of=("schedule", "p"), reached=1, reachable=3, missing=(("A", "2"), ("B", "1")))
    assert len(found) == 10
    assert all(one.reached <= one.reachable for one in found)
