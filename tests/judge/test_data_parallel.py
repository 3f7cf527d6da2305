"""Replicas are judged one by one, and then beside each other."""

import dataclasses

import pytest
import torch
from msgspec import structs

from pipeconform.bounds.gauge import Gauge
from pipeconform.case.blocks import Linear
from pipeconform.case.case import Model, Optimize, Sgd, Stage, Train, World, Zero
from pipeconform.case.tensor_parallel import TensorParallel
from pipeconform.judge.data_parallel import (
    added_up,
    cut_alike,
    first_values,
    hook_is_called,
    part_of,
    replicas_of,
)
from pipeconform.observe.array import Array
from pipeconform.observe.observation import Observation, Sharding, StepShown
from tests.case.examples import with_model
from tests.facts import tells
from tests.judge.allowed import Within
from tests.judge.grid import evidence_of
from tests.judge.honest import TRAIN, changed, found, honest, plain_case, told, with_value
from tests.judge.spoiling import nudged

WEIGHT = "blocks.0.weight"


def rounded(made, what, *, rank, step, name=WEIGHT):
    """A value that is as far off as its bound allows, as another order of additions makes it."""
    stage = made.shown[rank].pipeline_rank
    limit = Within(made, rank).bound(("steps", step, what, stage, name))
    tensor = getattr(made.shown[rank].steps[step], what)[stage][name].tensor()
    near = nudged(tensor, limit, beyond=False)
    assert not torch.equal(near, tensor)
    return with_value(made, what, stage, name, Array.of(near), rank=rank, step=step)


CHANGES = [
    (step, what)
    for step, kind in enumerate(evidence_of("replicas").case.program)
    for what in ("gradients", "parameters")
    if isinstance(kind, Train | Optimize) and not (what == "parameters" and step == 0)
]


@pytest.mark.parametrize(("step", "what"), CHANGES)
@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_replicas_that_round_otherwise_are_told_in_every_step_that_changes_values(step, what, rank):
    made = rounded(evidence_of("replicas"), what, rank=rank, step=step)
    stage = rank % 2

    assert told("DPC-1", made)[0] == ("replicas differ", step, stage, stage, None)


def test_what_differs_is_shown_with_every_rank_that_has_it():
    made = rounded(evidence_of("replicas, three steps"), "gradients", rank=2, step=2)
    held = [one.steps[2].gradients[0][WEIGHT] for one in (made.shown[0], made.shown[2])]

    (finding,) = found("DPC-1", made)
    assert (finding.kind, finding.step, finding.rank, finding.stage) == ("replicas differ", 2, 0, 0)
    assert tells(finding.message, "gradient", WEIGHT, "stage 0")
    assert tells(finding.message, "rank 0", first_values(held[0]), "rank 2", first_values(held[1]))


def test_a_few_values_are_shown_and_that_there_are_more():
    assert first_values(None) == "none"
    assert first_values(Array.of(torch.tensor([[0.5, 1.0], [2.0, 3.0]]))) == "0.5, 1, 2, 3"
    assert first_values(Array.of(torch.arange(5.0))) == "0, 1, 2, 3, …"


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("step", [0, 3])
def test_outputs_may_round_otherwise_and_no_more(rank, step):
    made = evidence_of("replicas")
    output = made.shown[rank].steps[step].output
    bound = Within(made, rank)._output(step, ())
    near = nudged(output.leaves()[0].tensor(), bound, beyond=False)
    assert not torch.equal(near, output.leaves()[0].tensor())
    wrong = changed(made, rank=rank, step=step, output=structs.replace(output, array=Array.of(near)))

    assert told("DPC-1", wrong) == []
    beyond = nudged(near, bound, beyond=True) + 1
    worse = changed(made, rank=rank, step=step, output=structs.replace(output, array=Array.of(beyond)))
    assert told("DPC-1", worse)[0][1:3] == (step, rank)


@pytest.mark.parametrize(
    "cuts", [((0, 2, 0),), ((0, 2, 1),), ((0, 4, 2),), ((0, 4, 3),), ((0, 2, 1), (1, 3, 2))]
)
def test_a_part_is_the_chunk_that_torch_makes(cuts):
    whole = torch.arange(25.0).reshape(5, 5)
    right = whole
    for dim, number, index in cuts:
        chunks = right.chunk(number, dim)
        right = chunks[index] if index < len(chunks) else right.narrow(dim, 0, 0)
    held = Sharding(placements=("S(0)",), mesh=(2,), dim=0, index=0, shape=(5, 5), cuts=cuts)

    assert part_of(Array.of(whole), held) == Array.of(right)


@pytest.mark.parametrize("left", ["gradient_shards", "parameter_shards"])
def test_the_right_values_are_cut_where_either_gradients_or_parameters_are_parts(left):
    """As before the first backward, where no gradient is there to be cut."""
    whole = evidence_of("sharded")
    gone = "parameter_shards" if left == "gradient_shards" else "gradient_shards"
    made = whole
    for rank, one in enumerate(whole.shown):
        for step in range(len(one.steps)):
            made = changed(made, rank=rank, step=step, **{gone: {}})
    (first, *_), (right, *_) = replicas_of(made), replicas_of(whole)
    plain = whole.expected.steps[2]

    for what in ("gradients", "parameters"):
        found = getattr(first.expected.steps[2], what)[0][WEIGHT]
        is_cut = left.startswith(what.removesuffix("s"))
        assert found == getattr(right.expected.steps[2] if is_cut else plain, what)[0][WEIGHT]
    part, all_of_it = (
        getattr(of, left.split("_")[0] + "s")[0][WEIGHT] for of in (right.expected.steps[2], plain)
    )
    assert part.size < all_of_it.size


def test_a_value_without_cuts_or_without_that_dimension_is_whole():
    whole = Array.of(torch.arange(4.0))
    held = Sharding(placements=("R",), mesh=(2,), dim=None, index=0, shape=(4,), cuts=())

    assert part_of(whole, None) is whole
    assert part_of(whole, held) is whole
    assert part_of(None, held) is None
    assert part_of(whole, structs.replace(held, cuts=((1, 2, 0),))) is whole


@pytest.mark.parametrize("waiting", [(), (0,), (1,), (0, 1)])
def test_of_parts_of_a_stage_the_terms_of_sums_are_added_up_and_nothing_else(waiting):
    """Each of the two parameters may be one of which either rank has a term."""
    names = ("first", "second")
    cut = plain_case(
        TRAIN,
        model=Model(width=3, stages=(Stage(blocks=(Linear(),)),)),
        world=World(size=2, pipeline_ranks=(0,), tensor=TensorParallel(others=((1,),), maps="column")),
    )
    held = {
        name: Sharding(
            placements=("P(sum)" if number in waiting else "R",),
            mesh=(2,),
            dim=None,
            index=0,
            shape=(2,),
            cuts=(),
            partial=number in waiting,
        )
        for number, name in enumerate(names)
    }
    shown = tuple(
        Observation(
            rank=rank,
            pipeline_rank=0,
            steps=(
                StepShown(
                    step=0,
                    gradients={0: {name: Array.of(torch.full((2,), 10.0**rank)) for name in names}},
                    gradient_shards={0: held},
                ),
            ),
        )
        for rank in (0, 1)
    )
    made = dataclasses.replace(evidence_of("plain"), case=cut, shown=shown)

    for rank, one in enumerate(added_up(made)):
        assert one.steps[0].gradients[0] == {
            name: Array.of(torch.full((2,), 11.0 if number in waiting else 10.0**rank))
            for number, name in enumerate(names)
        }


def test_a_hook_is_given_every_value_in_every_step():
    made = evidence_of("replicas with a hook")

    assert list(hook_is_called(dataclasses.replace(made, gauge=Gauge()))) == []
    for step in (0, 2):
        for rank in (0, 1):
            held = made.shown[rank].steps[step].hooked[rank]
            few = changed(made, rank=rank, step=step, hooked={rank: held - 1})
            none = changed(made, rank=rank, step=step, hooked={})
            more = changed(made, rank=rank, step=step, hooked={rank: held + 1})

            assert [(one.step, one.rank, one.stage) for one in hook_is_called(few)] == [(step, rank, rank)]
            assert [f"given {held - 1} of {held} gradient" in one.message for one in hook_is_called(few)] == [
                True
            ]
            assert ["given none of" in one.message for one in hook_is_called(none)] == [True]
            assert list(hook_is_called(more)) == []


def _cut(**changes):
    """What `cut_alike` says of a rank of replica 1 whose first parameter, or its gradient, is cut otherwise."""
    step = evidence_of("sharded").shown[3].steps[2]
    names = list(step.parameters[1])
    step = structs.replace(
        step,
        **{what: {1: {**getattr(step, what)[1], names[0]: change}} for what, change in changes.items()},
    )
    return [
        (one.kind, one.step, one.rank, one.stage)
        for one in cut_alike(3, step, 1, step.gradients[1], replica=1)
    ]


def test_a_shard_is_the_replica_s_own_and_its_gradient_is_cut_alike():
    held = evidence_of("sharded").shown[3].steps[2].parameter_shards[1][WEIGHT]
    where = (2, 3, 1)

    assert _cut() == []
    assert _cut(parameter_shards=None) == [("not sharded", *where)]
    assert _cut(parameter_shards=structs.replace(held, dim=None)) == [("not sharded", *where)]
    assert _cut(parameter_shards=structs.replace(held, index=0)) == [("another shard", *where)]
    assert _cut(gradient_shards=None) == [("gradient cut otherwise", *where)]
    assert _cut(gradient_shards=structs.replace(held, mesh=(4,))) == [("gradient cut otherwise", *where)]
    assert _cut(gradient_shards=None, gradients=None) == []


def test_a_tied_weight_is_the_same_everywhere_after_every_step_that_changes_it():
    program = (TRAIN, Optimize(), Zero(), TRAIN, Optimize())
    made = honest(with_model(plain_case(*program, optimizer=Sgd(lr=0.125)), tied=(0, 1)))
    counting = dataclasses.replace(made, gauge=Gauge())

    assert list(found("DPC-5", counting)) == []
    assert counting.gauge.compared - _compared("DPC-1", made) == 4 * 2  # four steps, two stages
    for step in (1, 4):
        for rank in (0, 1):
            wrong = rounded(made, "parameters", rank=rank, step=step, name="tied")
            (first, *_) = found("DPC-5", wrong)
            held = [one.steps[step].parameters[s]["tied"] for s, one in enumerate(wrong.shown)]

            assert (first.kind, first.step, first.rank, first.stage) == ("ties differ", step, 0, 0)
            assert tells(first.message, "tied", "rank 0", "stage 0", first_values(held[0]))
            assert tells(first.message, "rank 0", "rank 1", "stage 1", first_values(held[1]))


def _compared(requirement, made):
    counting = dataclasses.replace(made, gauge=Gauge())
    assert found(requirement, counting) == []
    return counting.gauge.compared
