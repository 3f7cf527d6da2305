"""Judgements of parts: their rank, how they are cut, and their sum."""

import dataclasses

import pytest
import torch
from msgspec import structs

from pipeconform.bounds.gauge import Gauge
from pipeconform.case.blocks import Linear, Mlp, Norm
from pipeconform.case.case import Model, Optimize, Sgd, Stage, Train, World, Zero
from pipeconform.case.tensor_parallel import TensorParallel, cut_dim, layers_of
from pipeconform.judge.data_parallel import part_of, replicas_of
from pipeconform.judge.evidence import Evidence
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.judge.tensor_parallel import _over_parts, boundary_cut, placements_kept
from pipeconform.observe.array import Array
from pipeconform.observe.observation import Forward, Observation, Sharding, StepShown, Structure
from pipeconform.oracle.full_model import reference
from tests.case.examples import EVERYTHING, small_case
from tests.judge.honest import merged

boundaries_keep_their_placement = JUDGEMENTS["FWD-19"].judge
parts_are_right = JUDGEMENTS["DPC-7"].judge
beside_another_thing = JUDGEMENTS["DPC-10"].judge

RANKS = 2
TRAIN = Train(batch_size=2, num_microbatches=2)
PROGRAM = (TRAIN, Optimize(), Zero(), TRAIN)


def case_of(*stages, program=PROGRAM, **tensor):
    return small_case(
        model=Model(width=4, sequence=2, stages=tuple(Stage(blocks=blocks) for blocks in stages)),
        stages_per_rank=len(stages),
        schedule="V" if len(stages) > 1 else "GPipe",
        world=World(size=RANKS, pipeline_ranks=(0,), tensor=TensorParallel(**{"others": ((1,),), **tensor})),
        program=program,
        optimizer=Sgd(lr=0.5),
    )


CUT = case_of((Mlp(), Norm(), Linear()), maps="column", stream="sequence")


def sharding(dim, rank, shape, *, partial=False):
    cut = "P(sum)" if partial else "R" if dim is None else f"S({dim})"
    cuts = () if dim is None else ((dim, RANKS, rank),)
    return Sharding(
        placements=(cut,), mesh=(RANKS,), dim=dim, index=rank, shape=shape, cuts=cuts, partial=partial
    )


def shown_by(case, right, rank, forwards):
    """One rank's step, cut as planned; replicated parameters' gradients are two halves."""
    layers = layers_of(case.world.tensor, case.model, 0)
    values: dict = {"gradients": {}, "parameters": {}}
    shards: dict = {"gradients": {}, "parameters": {}}
    for what in ("gradients", "parameters"):
        for name, array in getattr(right, what)[0].items():
            if array is None:
                values[what][name] = None
                continue
            halved = what == "gradients" and cut_dim(layers, name) is None
            cut = sharding(cut_dim(layers, name), rank, array.shape, partial=halved)
            part = part_of(array, cut)
            values[what][name] = Array.of(part.tensor() * (0.25, 0.75)[rank]) if halved else part
            shards[what][name] = cut
    return StepShown(
        step=right.step,
        output=merged(right.outputs) if right.outputs else None,
        losses=right.losses or None,
        gradients={0: values["gradients"]},
        parameters={0: values["parameters"]},
        gradient_shards={0: shards["gradients"]},
        parameter_shards={0: shards["parameters"]},
        forwards=forwards,
    )


def evidence(case=CUT):
    right = reference(case, scale=EVERYTHING.scale)
    shown = tuple(
        Observation(
            rank=rank,
            pipeline_rank=0,
            steps=tuple(shown_by(case, step, rank, ()) for step in right.steps),
        )
        for rank in range(RANKS)
    )
    return Evidence(
        case=case,
        capabilities=EVERYTHING,
        shown=shown,
        expected=right,
        bounded=lambda bounds: reference(case, scale=EVERYTHING.scale, bounds=bounds),
    )


def changed(made, rank, step, **fields):
    one = made.shown[rank]
    steps = list(one.steps)
    steps[step] = structs.replace(steps[step], **fields)
    shown = list(made.shown)
    shown[rank] = structs.replace(one, steps=tuple(steps))
    return dataclasses.replace(made, shown=tuple(shown))


def with_gradient(made, name, *, rank=1, value=None, shard=None):
    step = made.shown[rank].steps[0]
    values, shards = dict(step.gradients[0]), dict(step.gradient_shards[0])
    if value is not None:
        values[name] = value(values[name])
    if shard is not None:
        shards[name] = shard(shards[name])
        shards = {key: one for key, one in shards.items() if one is not None}
    return changed(made, rank, 0, gradients={0: values}, gradient_shards={0: shards})


def told(found):
    return [(one.kind, one.step, one.rank, one.stage) for one in found]


def doubled(array):
    return Array.of(array.tensor() * 2)


def test_parts_that_are_cut_as_planned_are_right_and_halves_are_added_up():
    assert told(parts_are_right(evidence())) == []


def test_beside_another_thing_only_the_first_wrong_step_is_told():
    made = evidence(case_of((Mlp(), Linear()), maps="column", program=(TRAIN, TRAIN)))
    name = next(iter(made.shown[1].steps[0].gradients[0]))
    wrong = with_gradient(made, name, value=doubled)
    later = made.shown[1].steps[1].gradients[0]
    both = changed(wrong, 1, 1, gradients={0: {**later, name: doubled(later[name])}})

    assert told(beside_another_thing(made)) == []
    assert {one[1] for one in told(parts_are_right(both))} == {0, 1}
    assert {one[1] for one in told(beside_another_thing(both))} == {0}


def test_another_order_of_additions_is_right_in_outputs_too():
    made = evidence()
    output = made.shown[0].steps[0].output
    tensor = output.leaves()[0].tensor()
    nudged = Structure.of(torch.nextafter(tensor, tensor + 1))

    assert told(parts_are_right(changed(made, 0, 0, output=nudged))) == []
    found = told(parts_are_right(changed(made, 0, 0, output=Structure.of(tensor * 1.5))))
    assert found[0] == ("output value", 0, 0, None)


@pytest.mark.parametrize("name", ["blocks.0.up.weight", "blocks.0.down.weight", "blocks.2.bias"])
def test_a_wrong_part_is_a_wrong_gradient(name):
    made = with_gradient(evidence(), name, value=doubled)

    assert ("gradient value", 0, 1, 0) in told(parts_are_right(made))


def test_a_contribution_that_is_missing_is_a_wrong_gradient_on_every_rank():
    made = with_gradient(evidence(), "blocks.1.weight", value=doubled)

    found = told(parts_are_right(made))
    assert {("gradient value", 0, rank, 0) for rank in range(RANKS)} <= set(found)


def test_a_contribution_is_not_taken_for_the_whole():
    made = with_gradient(
        evidence(), "blocks.1.weight", shard=lambda one: sharding(None, 1, one.shape), value=lambda one: one
    )

    assert ("gradient value", 0, 1, 0) in told(parts_are_right(made))


def test_a_gradient_is_cut_as_its_parameter():
    lost = with_gradient(evidence(), "blocks.0.up.weight", shard=lambda one: None)
    other = with_gradient(evidence(), "blocks.0.up.weight", shard=lambda one: sharding(1, 1, one.shape))
    waiting = with_gradient(
        evidence(), "blocks.0.up.weight", shard=lambda one: sharding(None, 1, one.shape, partial=True)
    )

    for made in (lost, other, waiting):
        assert told(parts_are_right(made))[0] == ("gradient cut otherwise", 0, 1, 0)


def test_a_parameter_is_cut_as_planned_and_by_this_rank():
    made = evidence()
    shards = dict(made.shown[1].steps[0].parameter_shards[0])
    plain = {name: one for name, one in shards.items() if name != "blocks.2.weight"}
    others = shards | {"blocks.2.weight": sharding(0, 0, (4, 4))}
    rows = shards | {"blocks.2.weight": sharding(1, 1, (4, 4))}

    for changes, kind in ((plain, "not cut"), (others, "cut otherwise"), (rows, "cut otherwise")):
        found = told(parts_are_right(changed(made, 1, 0, parameter_shards={0: changes})))
        assert found[0] == (kind, 0, 1, 0)


CROSSING = case_of((Linear(),), (Linear(),), program=(TRAIN,), boundary="sequence")


def handed(right, rank, *, placements=("S(1)",), part=None):
    """The forwards of both stages on one rank, the second's input cut in the sequence."""
    cut = sharding(1, rank if part is None else part, ())
    found = []
    for s, microbatches in enumerate(right.inputs):
        for k, (one,) in enumerate(microbatches):
            given = one
            if s:
                array, whole = part_of(one.array, cut), one.array.shape if placements else None
                given = structs.replace(one, array=array, placements=placements, whole=whole)
            found.append(Forward(stage=s, grad_enabled=True, inputs=(given,), output=right.outputs[k]))
    return tuple(found)


def crossing(**changes):
    """Rank 1 shows something other than it should."""
    right = reference(CROSSING, scale=EVERYTHING.scale)
    step = right.steps[0]
    shown = tuple(
        Observation(
            rank=rank,
            pipeline_rank=0,
            steps=(
                StepShown(
                    step=0,
                    output=merged(step.outputs),
                    losses=step.losses,
                    gradients=step.gradients,
                    parameters=step.parameters,
                    forwards=handed(step, rank, **(changes if rank else {})),
                ),
            ),
        )
        for rank in range(RANKS)
    )
    return Evidence(
        case=CROSSING,
        capabilities=EVERYTHING,
        shown=shown,
        expected=right,
        bounded=lambda bounds: reference(CROSSING, scale=EVERYTHING.scale, bounds=bounds),
    )


def test_parts_that_arrive_as_they_were_handed_over_are_right():
    assert told(boundaries_keep_their_placement(crossing())) == []


def test_the_placement_of_every_part_counts_as_compared():
    """One stage, on two ranks, with two microbatches receives something from another one."""
    made = dataclasses.replace(crossing(), gauge=(gauge := Gauge()))
    cut = boundary_cut(made, 0)

    assert list(placements_kept(next(replicas_of(made)), cut, stages=range(1, 2))) == []
    assert gauge.compared == len(made.shown[0].steps[0].forwards) - 2 == 2


def test_what_arrives_otherwise_is_told_apart():
    lost = told(boundaries_keep_their_placement(crossing(placements=None)))
    other = told(boundaries_keep_their_placement(crossing(placements=("R",))))
    exchanged = told(boundaries_keep_their_placement(crossing(part=0)))

    assert lost[0] == ("placement lost", 0, 1, 1)
    assert other[0] == ("placed otherwise", 0, 1, 1)
    assert exchanged[0] == ("boundary value", 0, 1, 1)


@pytest.mark.parametrize(
    ("placements", "mesh", "cuts", "num_replicas", "over_parts"),
    [
        (("S(0)",), (2,), ((0, 2, 1),), 1, (0, 2, 1)),
        (("R",), (2,), (), 1, None),
        (("S(0)",), (2,), ((0, 2, 1),), 2, None),
        (("S(0)", "S(1)"), (3, 2), ((0, 3, 2), (1, 2, 1)), 3, (1, 2, 1)),
        (("S(0)", "S(0)"), (2, 2), ((0, 2, 0), (0, 2, 1)), 2, (0, 2, 1)),
        (("_S(0, 2)", "S(0)"), (2, 2), ((0, 2, 1), (0, 2, 0)), 2, (0, 2, 1)),
        (("S(0)", "R"), (2, 2), ((0, 2, 1),), 2, None),
        (("R", "S(1)"), (2, 2), ((1, 2, 0),), 2, (1, 2, 0)),
    ],
    ids=[
        "parts alone",
        "whole",
        "replicas alone",
        "of other sizes",
        "one after the other",
        "the parts first",
        "whole on each part",
        "whole on each replica",
    ],
)
def test_of_a_mesh_of_replicas_and_parts_the_last_axis_is_that_of_the_parts(
    placements, mesh, cuts, num_replicas, over_parts
):
    """Where both cut one dimension, DTensor says by ``_S`` that the parts were cut first."""
    held = Sharding(placements=placements, mesh=mesh, dim=0, index=0, shape=(4, 4), cuts=cuts)

    assert _over_parts(held, num_replicas) == over_parts


GIVEN = case_of((Linear(),), program=(Train(batch_size=4, num_microbatches=2),), batch="samples")
batches_stay_dtensors = JUDGEMENTS["FWD-31"].judge


def given(value, rank, *, placements=("S(0)",), whole=(4, 2, 4)):
    """A rank's half of the samples, as a DTensor that says that its whole has the shape `whole`."""
    tensor = value.array.tensor()
    part = Array.of(tensor.chunk(2)[rank])
    return structs.replace(value, array=part, placements=placements, whole=whole)


def batched(*, inputs=None, output=None, losses=None):
    """Rank 1 shows something other than it should: of its inputs, its output or its losses."""
    right = reference(GIVEN, scale=EVERYTHING.scale)
    step = right.steps[0]
    shown = []
    for rank in range(RANKS):
        took = inputs if rank and inputs is not None else {}
        returned = output if rank and output is not None else {}
        forwards = tuple(
            Forward(
                stage=0,
                grad_enabled=True,
                inputs=(given(one, rank, **{"whole": (2, 2, 4), **took}),),
                output=given(step.outputs[k], rank, whole=(2, 2, 4)),
            )
            for k, (one,) in enumerate(step.inputs[0])
        )
        # the samples of a rank, microbatch by microbatch
        parts = [given(one, rank).array.tensor() for one in step.outputs]
        mine = Structure(
            kind="tensor",
            array=Array.of(torch.cat(parts)),
            **{"placements": ("S(0)",), "whole": (4, 2, 4), **returned},
        )
        shown.append(
            Observation(
                rank=rank,
                pipeline_rank=0,
                steps=(
                    StepShown(
                        step=0,
                        output=mine,
                        losses=losses(step.losses) if rank and losses else step.losses,
                        gradients=step.gradients,
                        parameters=step.parameters,
                        forwards=forwards,
                    ),
                ),
            )
        )
    return Evidence(
        case=GIVEN,
        capabilities=EVERYTHING,
        shown=tuple(shown),
        expected=right,
        bounded=lambda bounds: reference(GIVEN, scale=EVERYTHING.scale, bounds=bounds),
    )


def test_a_batch_of_parts_that_come_back_as_parts_is_right():
    made = dataclasses.replace(batched(), gauge=(gauge := Gauge()))

    assert told(batches_stay_dtensors(made)) == []
    # per rank: two inputs that are placed, an output that is, and its two microbatches, losses and gradients
    assert gauge.compared >= RANKS * (2 + 1 + 2 + 2)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"inputs": {"placements": None}}, "placement lost"),
        ({"inputs": {"placements": ("R",)}}, "placed otherwise"),
        ({"inputs": {"whole": (1, 2, 4)}}, "boundary global shape"),
        ({"output": {"placements": None, "whole": None}}, "placement lost"),
        ({"output": {"placements": ("S(1)",)}}, "placed otherwise"),
        ({"output": {"whole": (2, 2, 4)}}, "output global shape"),
        ({"losses": lambda all: tuple(map(doubled, all))}, "loss value"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_batch_of_parts_lost_is_told_apart(changes, kind):
    found = told(batches_stay_dtensors(batched(**changes)))

    assert found[0][0] == kind
    assert {one[2] for one in found} == {1}


def test_an_output_is_held_against_the_part_of_its_rank():
    made = batched()
    other = made.shown[0].steps[0].output
    found = told(batches_stay_dtensors(changed(made, 1, 0, output=other)))

    assert {one[:3] for one in found} == {("output value", 0, 1)}


def test_where_samples_met_the_targets_of_others_the_gradients_that_follow_are_not_told():
    made = batched(losses=lambda all: tuple(map(doubled, all)))
    gradients = made.shown[1].steps[0].gradients[0]
    wrong = changed(made, 1, 0, gradients={0: {name: doubled(one) for name, one in gradients.items()}})

    assert {one[0] for one in told(batches_stay_dtensors(wrong))} == {"loss value"}
