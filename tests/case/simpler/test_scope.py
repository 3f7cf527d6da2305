"""A simpler case stands in for a failing one only where it is claimed and its subject still shows in it.

Every row is a pair of cases that differ in one thing: the first may be run in the place of the failing case, and the
second may not.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from pipeconform.adapter import (
    Capabilities,
    ClippingClaim,
    Feature,
    MicrobatchRule,
    Placement,
    ScheduleClaim,
)
from pipeconform.case.blocks import (
    Activation,
    Attention,
    Branch,
    Decoder,
    Dropout,
    Inplace,
    Layout,
    Linear,
    Mlp,
    Norm,
    Unused,
)
from pipeconform.case.by_hand import ByHand
from pipeconform.case.case import (
    Case,
    Clip,
    Eval,
    LossSpec,
    Model,
    Passage,
    Sgd,
    Split,
    Stage,
    Train,
    World,
    Zero,
)
from pipeconform.case.focus import Focus, Limits
from pipeconform.case.misplans import Misplan
from pipeconform.case.mistakes import Mistake
from pipeconform.case.replicas import Replicas
from pipeconform.case.simpler.scope import Scope
from pipeconform.case.tensor_parallel import TensorParallel
from tests.case.examples import EVERYTHING

GPIPE = ScheduleClaim(name="GPipe", family="gpipe")
STEP = Train(batch_size=4, num_microbatches=2)
EVAL = Eval(batch_size=4, num_microbatches=2)
PLAIN = Stage(blocks=(Linear(),))


def _case(*stages: tuple, p: int = 0, size: int = 0, **changes) -> Case:
    """A case with one stage per tuple of blocks, or two linear ones."""
    model = {"width": 4, "stages": tuple(Stage(blocks=blocks) for blocks in stages) or (PLAIN, PLAIN)}
    model |= changes.pop("model", {})
    p = p or len(model["stages"]) // changes.get("stages_per_rank", 1)
    world = World(size=size or p, pipeline_ranks=tuple(range(p)))
    return Case(
        **{"model": Model(**model), "schedule": "GPipe", "world": world, "program": (STEP,), **changes}
    )


def _holds(
    case: Case,
    *,
    origin: Case | None = None,
    focus: Focus = Focus.PLAIN,
    claim: ScheduleClaim = GPIPE,
    capabilities: Capabilities = EVERYTHING,
    min_ranks: int = 1,
) -> bool:
    limits = Limits(capabilities=capabilities, min_ranks=min_ranks)
    return Scope(limits=limits, claim=claim, focus=focus).holds(case, origin=origin or case)


def _stream(source: int, last: int, *users: int, kind: str = "stream") -> dict:
    return {"passages": (Passage(kind=kind, source=source, last=last, users=users),), "container": "tuple"}


def _tensor(width: int, **changes) -> Case:
    world = World(size=4, pipeline_ranks=(0, 2), tensor=TensorParallel(others=((1, 3),), **changes))
    return _case(model={"width": width, "sequence": 2}, world=world)


def _ddp(*stages: tuple, **options) -> Case:
    world = World(size=4, pipeline_ranks=(0, 1), replicas=Replicas(others=((2, 3),), **options))
    return _case(*stages, world=world)


def _mistaken(mistake: Mistake, *, num_microbatches: int = 2, dtype: str = "float32") -> Case:
    right = Train(batch_size=4, num_microbatches=num_microbatches)
    return _case(model={"dtype": dtype}, program=(right, structs.replace(right, mistake=mistake)))


def _misplanned(batch_size: int, *, told: int) -> Case:
    world = World(size=2, pipeline_ranks=(0, 1), misplan=Misplan(how="microbatches", rank=0, number=told))
    return _case(world=world, program=(Train(batch_size=batch_size, num_microbatches=2),))


FIRST = Train(batch_size=4, num_microbatches=2, mistake=Mistake(where="forward", how="raise", microbatch=1))
IN_WHOLE = Train(batch_size=4, num_microbatches=2, mistake=Mistake(where="forward", how="raise"))
LATER_SIZE = Train(batch_size=6, num_microbatches=2)

SHOWS = {
    "every stage needs a map": (_case((Mlp(),), (Dropout(), Linear())), _case((Mlp(),), (Dropout(),))),
    "attention is a map": (
        _case((Attention(),), (Linear(),), model={"sequence": 2}),
        _case((Dropout(),), (Linear(),), model={"sequence": 2}),
    ),
    "a norm of two values hides its input": (
        _case((Linear(), Norm()), (Linear(),), model={"width": 3}),
        _case((Linear(), Norm()), (Linear(),), model={"width": 2}),
    ),
    "a decoder of one value hides its input": (
        _case((Decoder(),), (Linear(),), model={"width": 2, "sequence": 2}),
        _case((Decoder(),), (Linear(),), model={"width": 1, "sequence": 2}),
    ),
    "a map is cut into equal parts": (_tensor(4, maps="column"), _tensor(3, maps="column")),
    "something is left to train": (
        _case(model={"stages": (PLAIN, Stage(blocks=(Linear(),), frozen=True))}),
        _case(model={"stages": (Stage(blocks=(Linear(),), frozen=True),) * 2}),
    ),
    "one block that is trained is enough": (
        _case((Linear(frozen=True), Mlp()), (Linear(frozen=True),)),
        _case((Linear(frozen=True), Mlp(frozen=True)), (Linear(frozen=True),)),
    ),
    "what is done in place shows in views only": (
        _case((Linear(), Inplace()), (Linear(),), model={"view_outputs": True}),
        _case((Linear(), Inplace()), (Linear(),)),
    ),
    "an activation shows in views only": (
        _case((Linear(), Activation()), (Linear(),), model={"view_outputs": True}),
        _case((Linear(), Activation()), (Linear(),)),
    ),
    "a layout shows in views only": (
        _case((Linear(), Layout()), (Linear(),), model={"view_outputs": True}),
        _case((Linear(), Layout()), (Linear(),)),
    ),
    "an activation ends its stage": (
        _case((Linear(), Activation()), (Linear(),), model={"view_outputs": True}),
        _case((Activation(), Linear()), (Linear(),), model={"view_outputs": True}),
    ),
    "an activation of the last stage ends it, too": (
        _case((Linear(),), (Linear(), Activation()), model={"view_outputs": True}),
        _case((Linear(),), (Linear(), Activation(), Linear()), model={"view_outputs": True}),
    ),
    "another layout crosses the last boundary": (
        _case((Linear(),), (Linear(), Layout()), (Linear(),), model={"view_outputs": True}),
        _case((Linear(), Layout()), (Linear(),), (Linear(),), model={"view_outputs": True}),
    ),
    "another layout is handed on as it is": (
        _case((Linear(), Mlp(), Layout()), (Linear(),), model={"view_outputs": True}),
        _case((Linear(), Layout(), Mlp()), (Linear(),), model={"view_outputs": True}),
    ),
    "another layout is no output": (
        _case((Linear(), Layout()), (Linear(),), model={"view_outputs": True}),
        _case((Linear(),), (Linear(), Layout()), model={"view_outputs": True}),
    ),
    "what the first stage learns could be its input": (
        _case(*((Linear(),),) * 3, model=_stream(1, 2, 2, kind="learned")),
        _case(*((Linear(),),) * 3, model=_stream(0, 2, 2, kind="learned")),
    ),
    "what is skipped passes over a stage": (
        _case(*((Linear(),),) * 3, model=_stream(0, 2, 2)),
        _case(*((Linear(),),) * 3, model=_stream(1, 2, 2)),
    ),
    "what nobody uses skips nothing": (
        _case(*((Linear(),),) * 3, model=_stream(1, 2)),
        _case(*((Linear(),),) * 3, model=_stream(1, 2, 2)),
    ),
    "what is no stream may go to the next stage": (
        _case(*((Linear(),),) * 3, model=_stream(1, 2, 2, kind="scalar")),
        _case(*((Linear(),),) * 3, model=_stream(1, 2, 2)),
    ),
    "every passage counts": (
        _case(
            *((Linear(),),) * 4,
            model={
                "passages": (
                    Passage(kind="stream", source=0, last=2, users=(2,)),
                    Passage(kind="stream", source=1, last=3, users=(3,)),
                ),
                "container": "tuple",
            },
        ),
        _case(
            *((Linear(),),) * 4,
            model={
                "passages": (
                    Passage(kind="stream", source=0, last=2, users=(2,)),
                    Passage(kind="stream", source=2, last=3, users=(3,)),
                ),
                "container": "tuple",
            },
        ),
    ),
    "ddp is told of unused parameters": (
        _ddp((Linear(), Unused()), (Linear(),), find_unused=True),
        _ddp((Linear(), Unused()), (Linear(),)),
    ),
    "ddp is told of branches": (
        _ddp((Linear(), Branch()), (Linear(),), find_unused=True),
        _ddp((Linear(), Branch()), (Linear(),)),
    ),
    "only ddp is told of unused parameters": (
        _ddp((Linear(), Unused()), (Linear(),), wrapper="fully_shard"),
        _ddp((Linear(), Unused()), (Linear(),)),
    ),
    "without replicas nobody is told of unused parameters": (
        _case((Linear(), Unused()), (Linear(),)),
        _ddp((Linear(), Unused()), (Linear(),)),
    ),
    "longer sequences come after shorter ones": (
        _case(model={"split": Split(longer=True), "sequence": 2}, program=(STEP, Zero(), STEP)),
        _case(model={"split": Split(longer=True), "sequence": 2}),
    ),
    "both numbers of microbatches divide the batch": (_misplanned(6, told=3), _misplanned(4, told=3)),
    "the right number of microbatches divides the batch": (_misplanned(6, told=3), _misplanned(9, told=3)),
    "a wrong number of microbatches is another one": (_misplanned(6, told=1), _misplanned(6, told=2)),
    "in the first step every microbatch goes wrong": (
        _case(program=(IN_WHOLE, STEP)),
        _case(program=(FIRST, STEP)),
    ),
    "in a later step one microbatch may go wrong": (
        _case(program=(STEP, FIRST)),
        _case(program=(FIRST,)),
    ),
    "one sample is too few for two microbatches": (
        _mistaken(Mistake(where="batch", how="scarce")),
        _mistaken(Mistake(where="batch", how="scarce"), num_microbatches=1),
    ),
    "there is a dtype above the model's": (
        _mistaken(Mistake(where="output", how="up")),
        _mistaken(Mistake(where="output", how="up"), dtype="float64"),
    ),
    "an output that is wrong is handed on": (
        _mistaken(Mistake(where="output", how="inner", stage=0)),
        _mistaken(Mistake(where="output", how="inner", stage=1)),
    ),
    "the last stage may raise": (
        _mistaken(Mistake(where="forward", how="raise", stage=1)),
        _mistaken(Mistake(where="output", how="inner", stage=1)),
    ),
}


@pytest.mark.parametrize(("shows", "hides"), SHOWS.values(), ids=SHOWS)
def test_the_subject_of_a_simpler_case_still_shows(shows: Case, hides: Case) -> None:
    assert _holds(shows)
    assert not _holds(hides)


@pytest.mark.parametrize("maps", ["column", "row"])
def test_only_maps_that_are_cut_need_a_width_of_equal_parts(maps: str) -> None:
    assert _holds(_tensor(3, boundary="whole"))
    assert not _holds(_tensor(3, maps=maps))


def _narrowed(**boundary) -> Capabilities:
    return replace(EVERYTHING, boundary=replace(EVERYTHING.boundary, **boundary))


UNCLAIMED = {
    "a container": (_case(model=_stream(0, 1, kind="scalar")), _narrowed(containers=("tensor", "list"))),
    "a dtype": (_case(model={"dtype": "float64"}), _narrowed(dtypes=("float32",))),
    "two dimensions": (_case(), _narrowed(min_ndim=3)),
    "three dimensions": (_case(model={"sequence": 2}), _narrowed(min_ndim=4)),
    "several inputs": (
        _case(model={"carried": ("mask", "scale"), "container": "tuple"}),
        _narrowed(max_tensors=2),
    ),
    "boundaries that differ": (
        _case(*((Linear(),),) * 3, model=_stream(0, 1, kind="scalar")),
        _narrowed(differ=False),
    ),
    "a reduction": (_case(loss=LossSpec(reduction="sum")), replace(EVERYTHING, reductions=("mean",))),
    "a loss": (_case(), replace(EVERYTHING, losses=("cross_entropy",))),
    "a norm to clip by": (
        _case(optimizer=Sgd(lr=0.5, clip=Clip(limit=1.0, norm="maximum"))),
        replace(EVERYTHING, clipping=ClippingClaim(norms=("two",))),
    ),
    "a dtype to clip": (
        _case(optimizer=Sgd(lr=0.5, clip=Clip(limit=1.0))),
        replace(EVERYTHING, clipping=ClippingClaim(dtypes=("float32",))),
    ),
}


@pytest.mark.parametrize(("case", "less"), UNCLAIMED.values(), ids=UNCLAIMED)
def test_what_is_not_claimed_is_not_run_instead(case: Case, less: Capabilities) -> None:
    assert _holds(case)
    assert not _holds(case, capabilities=less)


MAPPING = Mistake(where="output", how="mapping", stage=0)
TOO_MANY = Mistake(where="output", how="more", stage=0)
NOTHING = Mistake(where="output", how="none", stage=0)


@pytest.mark.parametrize(
    ("mistake", "containers", "at_once"),
    [
        (NOTHING, ("tensor", "mapping"), True),
        (MAPPING, ("tensor",), True),
        (MAPPING, ("tensor", "mapping"), False),
        (TOO_MANY, ("tensor",), False),
    ],
)
def test_what_only_a_step_before_makes_wrong_keeps_that_step(mistake, containers, at_once) -> None:
    """An engine that carries mappings hands on the first one that it gets, rightly."""
    able, wrong = _narrowed(containers=containers), structs.replace(STEP, mistake=mistake)
    later = _case(program=(STEP, Zero(), wrong))

    assert _holds(later, focus=Focus.WRONG_VALUES, capabilities=able)
    found = _holds(_case(program=(wrong,)), origin=later, focus=Focus.WRONG_VALUES, capabilities=able)
    assert found is at_once


def test_a_sequence_makes_a_third_dimension() -> None:
    needs_three = _narrowed(min_ndim=3)

    assert _holds(_case(model={"sequence": 1}), capabilities=needs_three)
    assert not _holds(_case(), capabilities=needs_three)


def test_a_case_may_keep_what_it_was_about_but_gets_nothing_unclaimed() -> None:
    less = replace(EVERYTHING, features=EVERYTHING.features - {Feature.EVAL})
    evaluates, trains = _case(program=(STEP, EVAL)), _case(program=(STEP,))

    assert _holds(evaluates, origin=trains)
    assert _holds(evaluates, origin=evaluates, capabilities=less)
    assert not _holds(evaluates, origin=trains, capabilities=less)


@pytest.mark.parametrize("last", [STEP, structs.replace(STEP, mistake=Mistake(where="input", how="ndim"))])
def test_a_step_that_clears_gradients_is_not_taken_out_from_between_two_trainings(last: Train) -> None:
    """What accumulation does wrong would show in its place."""
    accumulates, clears = _case(program=(STEP, last)), _case(program=(STEP, Zero(), last))
    focus = Focus.PLAIN if last == STEP else Focus.WRONG_SHAPE

    assert not _holds(accumulates, origin=clears, focus=focus)
    assert _holds(accumulates, origin=accumulates, focus=focus)


SIZES = {
    "as many ranks as must run": (Focus.PLAIN, 2, _case(), _case((Linear(),))),
    "as many stages as the subject needs": (Focus.SKIP, 1, _case(*((Linear(),),) * 3), _case()),
    "as many samples as the subject needs": (
        Focus.REPLICA_NORMS,
        1,
        _ddp(),
        structs.replace(_ddp(), program=(Train(batch_size=3, num_microbatches=2),)),
    ),
    "as many replicas as the subject needs": (Focus.REPLICA_NORMS, 1, _ddp(), _case()),
}


@pytest.mark.parametrize(("focus", "min_ranks", "enough", "few"), SIZES.values(), ids=SIZES)
def test_a_simpler_case_has_the_least_sizes(focus: Focus, min_ranks: int, enough: Case, few: Case) -> None:
    assert _holds(enough, focus=focus, min_ranks=min_ranks)
    assert not _holds(few, focus=focus, min_ranks=min_ranks)


def test_a_subject_of_stages_on_one_rank_keeps_two_of_them_on_every_rank() -> None:
    claim = ScheduleClaim(name="Both", stages_per_rank=(1, 2))
    four = _case(*((Linear(),),) * 4, stages_per_rank=2)

    assert _holds(four, focus=Focus.MISPLACED, claim=claim)
    assert not _holds(_case(*((Linear(),),) * 4), focus=Focus.MISPLACED, claim=claim)
    assert not _holds(_case(stages_per_rank=2), focus=Focus.MISPLACED, claim=claim)
    assert _holds(_case(stages_per_rank=2), claim=claim)


def test_the_ranks_of_all_pipelines_count_where_stages_are_replicated() -> None:
    two_pipelines, bystanders = _ddp(), _case(size=4, world=World(size=4, pipeline_ranks=(0, 1)))

    assert _holds(two_pipelines, min_ranks=4)
    assert not _holds(two_pipelines, min_ranks=5)
    assert not _holds(bystanders, min_ranks=4)


def test_every_run_has_a_size_that_the_schedule_takes() -> None:
    even = replace(GPIPE, microbatches=MicrobatchRule.EVEN)
    odd = Train(batch_size=6, num_microbatches=3)

    assert _holds(_case(program=(STEP, Zero(), STEP)), claim=even)
    assert not _holds(_case(program=(STEP, Zero(), odd)), claim=even)
    assert not _holds(_case(program=(odd, Zero(), STEP)), claim=even)


def test_only_edge_sizes_may_be_outside_of_the_claim() -> None:
    """A schedule that takes even numbers of microbatches only must say so when it is given another."""
    even = replace(GPIPE, microbatches=MicrobatchRule.EVEN)
    three, nine = (_case(program=(Train(batch_size=m, num_microbatches=m),)) for m in (3, 9))

    assert not _holds(three, claim=even)
    assert _holds(three, claim=even, focus=Focus.EDGE)
    assert not _holds(nine, claim=even, focus=Focus.EDGE)


V = ScheduleClaim(name="V", placement=Placement.V, stages_per_rank=(2,), family="zb_v")


def _tied(*stages: int, replicas: bool = False) -> Case:
    changes = {"model": {"stages": (PLAIN,) * 4, "tied": stages}, "stages_per_rank": 2}
    if replicas:
        changes["world"] = World(size=4, pipeline_ranks=(0, 1), replicas=Replicas(others=((2, 3),)))
    return _case(**changes)


@pytest.mark.parametrize(
    ("tied", "needed"),
    [
        ((0, 1), {Feature.SHARED_ACROSS_RANKS}),
        ((0, 3), {Feature.SHARED_ACROSS_STAGES}),
        ((1, 2), {Feature.SHARED_ACROSS_STAGES}),
        ((0, 1, 3), {Feature.SHARED_ACROSS_RANKS, Feature.SHARED_ACROSS_STAGES}),
    ],
)
def test_tied_stages_need_what_the_ranks_that_own_them_make_of_the_tie(tied, needed) -> None:
    """In a V the first and the last of four stages are on one rank."""
    both = {Feature.SHARED_ACROSS_RANKS, Feature.SHARED_ACROSS_STAGES}
    for given in (
        {*needed},
        both,
        both - {Feature.SHARED_ACROSS_RANKS},
        both - {Feature.SHARED_ACROSS_STAGES},
    ):
        capabilities = replace(EVERYTHING, features=EVERYTHING.features - both | given)
        assert _holds(_tied(*tied), claim=V, capabilities=capabilities) == (needed <= given)


def test_replicas_cannot_tie_stages_of_one_rank() -> None:
    """Two wrappers of one rank would hold the shared parameter."""
    assert _holds(_tied(0, 1, replicas=True), claim=V)
    assert not _holds(_tied(0, 3, replicas=True), claim=V)


def test_a_message_that_is_not_due_needs_a_neighbour_on_another_rank() -> None:
    """In a V the second and the third of four stages are on one rank, which sends itself nothing."""

    def by_hand(mistake: str, stage: int) -> Case:
        hand = ByHand(whole=True, mistake=mistake, stage=stage)
        step = Train(batch_size=4, num_microbatches=2, by_hand=hand)
        return _case(model={"stages": (PLAIN,) * 4}, stages_per_rank=2, program=(STEP, step))

    assert _holds(by_hand("send_early", 0), claim=V)
    assert not _holds(by_hand("send_early", 1), claim=V)
    assert _holds(by_hand("receive_unknown", 1), claim=V)
    assert not _holds(by_hand("receive_unknown", 2), claim=V)
    assert _holds(by_hand("forward_early", 2), claim=V)
