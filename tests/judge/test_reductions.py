"""How reductions are counted: by values, not by operations, and against the stage's last backward."""

import dataclasses

import pytest
from msgspec import structs

from pipeconform.case.case import Train, World
from pipeconform.case.replicas import Replicas
from pipeconform.errors import HarnessError
from pipeconform.judge.evidence import Evidence
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.observe.observation import Event, Observation, Reduction, StepShown
from pipeconform.oracle.full_model import reference
from tests.case.examples import EVERYTHING, small_case

synchronised_once = JUDGEMENTS["DPC-2"].judge

VALUES = 12  # a linear map of three inputs to three outputs, and its bias
PADDED = 16  # four rows in the place of three, shared by two ranks
EVENTS = (
    Event("F", 0, 0, -1, 0.0, "W"),
    Event("F", 0, 1, -1, 0.1, "W"),
    Event("W", 0, 0, 5, 0.2),
    Event("W", 0, 1, 6, 0.3),
)


def evidence(*reductions, wrapper="ddp", events=EVENTS, world_size=2, others=((1,),), stages=1):
    """One stage, or two, on one rank in two replicas; rank 0 shows `reductions`, the other does everything right."""
    replicas = Replicas(others=others, wrapper=wrapper)
    model = small_case().model
    case = small_case(
        model=structs.replace(model, stages=model.stages[:stages]),
        stages_per_rank=stages,
        world=World(size=world_size, pipeline_ranks=(0,), replicas=replicas),
        program=(Train(batch_size=4, num_microbatches=2),),
    )
    expected = reference(case, scale=EVERYTHING.scale)
    right = tuple(Reduction("allreduce_", s, VALUES, 4) for s in range(stages))
    shown = tuple(
        Observation(
            rank=rank,
            pipeline_rank=0,
            steps=(
                StepShown(
                    step=0,
                    gradients=expected.steps[0].gradients,
                    events=events,
                    reductions=right if rank else reductions,
                ),
            ),
        )
        for rank in range(world_size)
    )
    capabilities = dataclasses.replace(EVERYTHING, schedules=EVERYTHING.schedules[:1])
    return Evidence(
        case=case,
        capabilities=capabilities,
        shown=shown,
        expected=expected,
        bounded=lambda bounds: reference(case, scale=EVERYTHING.scale, bounds=bounds),
    )


def kinds(one):
    return [finding.kind for finding in synchronised_once(one)]


@pytest.mark.parametrize(
    "reductions",
    [
        [Reduction("allreduce_", 0, VALUES, 4)],
        [Reduction("allreduce_", 0, 3, 4), Reduction("allreduce_", 0, 9, 4)],
        [Reduction("allreduce_", 0, VALUES, 4), Reduction("allreduce_", -1, 1, 4)],
    ],
    ids=["one bucket", "two buckets", "something else of the pipeline's"],
)
def test_once_in_whatever_pieces_is_right(reductions):
    assert kinds(evidence(*reductions)) == []


ALIKE = Reduction("allreduce_", 0, VALUES, 4, alike=True)


def test_a_group_of_the_engine_s_own_with_the_same_ranks_is_as_good():
    assert kinds(evidence(ALIKE)) == []
    assert kinds(evidence(ALIKE, ALIKE)) == ["synchronised more than once"]
    assert kinds(evidence(structs.replace(ALIKE, events=3))) == ["synchronised too early"]
    assert kinds(evidence(structs.replace(ALIKE, elements=9))) == ["partly synchronised"]


def test_where_the_given_group_is_used_others_do_not_count():
    given = structs.replace(ALIKE, alike=False)
    assert kinds(evidence(given, ALIKE)) == []
    assert kinds(evidence(structs.replace(given, elements=9), ALIKE)) == ["partly synchronised"]


@pytest.mark.parametrize("alike", [False, True])
def test_single_numbers_beside_all_gradients_are_losses_or_norms(alike):
    number = Reduction("allreduce_", 0, 1, 2, alike=alike)
    assert kinds(evidence(structs.replace(ALIKE, alike=alike), number)) == []
    assert kinds(evidence(*[structs.replace(number, events=4)] * VALUES)) == []
    assert kinds(evidence(*[structs.replace(number, events=4)] * 11)) == ["partly synchronised"]


TWO = (
    Event("W", 1, 0, 5, 0.2),
    Event("W", 0, 0, 6, 0.3),
    Event("W", 1, 1, 7, 0.4),
    Event("W", 0, 1, 8, 0.5),
)


def test_stages_of_a_rank_on_a_group_of_the_engine_s_own_are_judged_together():
    def found(*reductions):
        return kinds(evidence(*reductions, events=TWO, stages=2))

    both = structs.replace(ALIKE, elements=2 * VALUES)
    assert found(both) == []
    assert found(ALIKE, structs.replace(ALIKE, events=3)) == []  # the one stage's, while the other computes
    assert found(ALIKE) == ["partly synchronised"]
    assert found(both, ALIKE) == ["synchronised more than once"]
    assert found(structs.replace(both, events=2)) == ["synchronised too early"]
    assert found() == ["never synchronised"] * 2


def test_shards_are_filled_up_to_equal_size():
    assert kinds(evidence(Reduction("_reduce_scatter_base_", 0, PADDED, 4), wrapper="fully_shard")) == []
    assert kinds(evidence(Reduction("allreduce_", 0, PADDED, 4))) == ["synchronised more than once"]


@pytest.mark.parametrize(
    ("reductions", "kind", "words"),
    [
        ([], "never synchronised", "reduces none of them"),
        ([Reduction("allreduce_", -1, VALUES, 4)], "never synchronised", "12 values on other groups"),
        ([Reduction("allreduce_", 0, 9, 4)], "partly synchronised", "reduces 9 of them"),
        ([Reduction("allreduce_", 0, VALUES, 4)] * 2, "synchronised more than once", "2 times as many"),
        ([Reduction("allreduce_", 0, VALUES, 3)], "synchronised too early", "1 of 2 had"),
    ],
)
def test_what_is_wrong_is_told(reductions, kind, words):
    found = list(synchronised_once(evidence(*reductions)))

    assert [one.kind for one in found] == [kind]
    assert words in found[0].message
    assert (found[0].rank, found[0].stage, found[0].step) == (0, 0, 0)


def test_within_the_last_backward_it_is_not_too_early():
    split = (*EVENTS, Event("W", 0, 1, 7, 0.4))  # the last weight part, parameter by parameter

    assert kinds(evidence(Reduction("allreduce_", 0, VALUES, 4), events=split)) == []


def test_a_replica_alone_need_not_reduce_anything():
    assert kinds(evidence(world_size=1, others=())) == []


def test_a_rank_that_recorded_nothing_is_no_verdict():
    one = evidence()
    step = structs.replace(one.shown[0].steps[0], reductions=None)
    shown = (structs.replace(one.shown[0], steps=(step,)), *one.shown[1:])

    with pytest.raises(HarnessError, match="recorded none"):
        list(synchronised_once(dataclasses.replace(one, shown=shown)))
