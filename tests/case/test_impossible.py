"""Parts of a case that cannot be are told from ones that differ little and can, each with its one reason.

Of models, test_model.py has the pairs, and of worlds test_world.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from msgspec import structs

from pipeconform.case.blocks import Head, Linear
from pipeconform.case.by_hand import UNTIMELY, ByHand, has_neighbour, impossible_by_hand
from pipeconform.case.case import (
    Case,
    Eval,
    LossSpec,
    Model,
    Optimize,
    Scaling,
    Sgd,
    Split,
    Stage,
    Train,
    World,
)
from pipeconform.case.misplans import Misplan, impossible_misplan
from pipeconform.case.mistakes import Mistake, impossible_mistake
from pipeconform.case.perturbations import Perturbation
from pipeconform.case.replicas import Replicas
from pipeconform.errors import BadCaseError
from tests.case.examples import small_case, with_model

LINEAR = Stage(blocks=(Linear(),))
SCALED = Sgd(lr=0.5, scaling=Scaling(initial=512.0, backoff=0.5))


Reasons = Callable[[], Iterator[str]]


def _one_reason(possible: Reasons, impossible: Reasons, words: str) -> None:
    assert list(possible()) == []
    (reason,) = impossible()
    assert reason.startswith(words)


# ------------------------------------------------------------------------------------------ steps by hand


def _by_hand(**fields) -> Reasons:
    return lambda: impossible_by_hand(ByHand(**fields), name="it", num_stages=3, num_microbatches=2)


BY_HAND = {
    "the last stage": (_by_hand(stage=2), _by_hand(stage=3), "it makes a mistake at a stage or microbatch"),
    "the last microbatch": (_by_hand(microbatch=1), _by_hand(microbatch=2), "it makes a mistake at a stage"),
    "a weight part": (
        _by_hand(mistake="weight_first"),
        _by_hand(mistake="weight_first", mixed=True),
        "it cannot both be mixed and make a mistake",
    ),
    "mixed without a mistake": (
        _by_hand(mixed=True),
        _by_hand(mistake="weight_twice", mixed=True),
        "it cannot both be mixed and make a mistake",
    ),
    "a whole backward": (
        _by_hand(mistake="backward_twice", whole=True),
        _by_hand(mistake="weight_twice", whole=True),
        "it has whole backwards",
    ),
    "whole backwards without a mistake": (
        _by_hand(whole=True),
        _by_hand(mistake="weight_unknown", whole=True),
        "it has whole backwards",
    ),
}


@pytest.mark.parametrize(("possible", "impossible", "words"), BY_HAND.values(), ids=BY_HAND)
def test_impossible_steps_by_hand(possible, impossible, words) -> None:
    _one_reason(possible, impossible, words)


ENDS = {
    "forward_early": {1, 2},
    "receive_unknown": {1, 2},
    "backward_early": {0, 1},
    "send_early": {0, 1},
}


@pytest.mark.parametrize("mistake", UNTIMELY)
def test_what_comes_from_a_neighbour_is_not_due_only_where_there_is_one(mistake: str) -> None:
    """The first of three stages receives no inputs, and the last no gradients."""
    on_three_ranks = {s for s in range(3) if has_neighbour(mistake, stage=s, placed=(0, 1, 2))}
    refused = {s for s in range(3) if list(_by_hand(mistake=mistake, whole=True, stage=s)())}

    assert on_three_ranks == ENDS.get(mistake, {0, 1, 2})
    assert refused == {0, 1, 2} - on_three_ranks


@pytest.mark.parametrize("mistake", UNTIMELY)
def test_only_messages_need_a_neighbour_on_another_rank(mistake: str) -> None:
    """Of the V 0, 1, 1, 0 the two in the middle are on one rank, which sends itself nothing."""
    on_a_v = {s for s in range(4) if has_neighbour(mistake, stage=s, placed=(0, 1, 1, 0))}
    expected = {
        "forward_early": {1, 2, 3},
        "receive_unknown": {1, 3},
        "backward_early": {0, 1, 2},
        "send_early": {0, 2},
    }

    assert on_a_v == expected.get(mistake, {0, 1, 2, 3})


def test_a_missing_neighbour_is_told() -> None:
    (reason,) = _by_hand(mistake="send_early", whole=True, stage=2)()

    assert reason == "it.mistake 'send_early' needs a neighbour of that stage"


# ------------------------------------------------------------------------------------------ mistakes and plans


def _mistake(**fields) -> Reasons:
    one = Mistake(**{"where": "output", "how": "inner", **fields})
    return lambda: impossible_mistake(one, name="it", num_stages=3, num_microbatches=2)


MISTAKES = {
    "the last stage": (_mistake(stage=2), _mistake(stage=3), "it.stage 3 is outside 0…2"),
    "the first stage": (_mistake(stage=0), _mistake(stage=-1), "it.stage -1 is outside 0…2"),
    "the last microbatch": (_mistake(microbatch=1), _mistake(microbatch=2), "it.microbatch 2 is outside 0…1"),
    "the first microbatch": (_mistake(microbatch=0), _mistake(microbatch=-1), "it.microbatch -1 is outside"),
    "what applies to gradients": (
        _mistake(where="gradient", how="ndim"),
        _mistake(where="gradient", how="more"),
        "it.how 'more' does not apply to 'gradient'; expected inner, ndim, down",
    ),
    **{
        f"all of the {where}": (
            _mistake(where=where, how=how),
            _mistake(where=where, how=how, microbatch=0),
            "it changes the whole batch, not microbatch 0",
        )
        for where, how in (("input", "inner"), ("batch", "scarce"), ("reduction", "raise"))
    },
}


@pytest.mark.parametrize(("possible", "impossible", "words"), MISTAKES.values(), ids=MISTAKES)
def test_impossible_mistakes(possible, impossible, words) -> None:
    _one_reason(possible, impossible, words)


def _misplan(how: str, *, p: int = 2, m: int | None = None, **fields) -> Reasons:
    return lambda: impossible_misplan(Misplan(how=how, **fields), num_ranks=p, num_stages=3, table_of=m)


MISPLANS = {
    "the last rank": (
        _misplan("stages", rank=1),
        _misplan("stages", rank=2),
        "world.misplan.rank 2 is outside 0…1",
    ),
    "the first rank": (
        _misplan("stages", rank=0),
        _misplan("stages", rank=-1),
        "world.misplan.rank -1 is outside",
    ),
    "an unknown schedule on all ranks": (
        _misplan("schedule"),
        _misplan("metadata"),
        "world.misplan.how 'metadata' changes one rank's plan, but world.misplan.rank is None",
    ),
    "an unknown schedule on one rank": (
        _misplan("schedule", rank=1),
        _misplan("single", rank=1),
        "world.misplan.how 'single' changes every rank's plan, but world.misplan.rank is 1",
    ),
    "one plan among others": (
        _misplan("stages", rank=0, p=2),
        _misplan("stages", rank=0, p=1),
        "world.misplan.how 'stages' needs at least two ranks",
    ),
    "a remainder": (
        _misplan("remainder", p=2),
        _misplan("remainder", p=1),
        "world.misplan.how 'remainder' needs at least two ranks",
    ),
    "two stages on the only rank": (
        _misplan("single", p=1),
        _misplan("remainder", p=1),
        "world.misplan.how 'remainder' needs at least two ranks",
    ),
    "a stage with another after it": (
        _misplan("shape", stage=1),
        _misplan("shape", stage=2),
        "world.misplan.stage 2 has no stage after it",
    ),
    "the first stage": (
        _misplan("dtype", stage=0),
        _misplan("dtype", stage=-1),
        "world.misplan.stage -1 has no stage after it",
    ),
    "a number of microbatches": (
        _misplan("microbatches", rank=0, number=1),
        _misplan("microbatches", rank=0, number=0),
        "world.misplan.number 0 must be above 0 with how 'microbatches'",
    ),
    "no number of anything else": (
        _misplan("metadata", rank=0, number=0),
        _misplan("metadata", rank=0, number=1),
        "world.misplan.number 1 must be above 0 with how 'microbatches', and 0 otherwise",
    ),
    "a table that can be wrong": (
        _misplan("no forward", m=1),
        _misplan("no forward"),
        "world.misplan.how 'no forward' changes a table, but world.order is None",
    ),
    "a table that every rank is given": (
        _misplan("no line", m=1),
        _misplan("no line", m=1, rank=0),
        "world.misplan.how 'no line' changes every rank's plan, but world.misplan.rank is 0",
    ),
    "the last stage of a table": (
        _misplan("no backward", m=2, stage=2),
        _misplan("no backward", m=2, stage=3),
        "world.misplan.stage 3 is outside 0…2 with how 'no backward'",
    ),
    "the last microbatch of a table": (
        _misplan("forward twice", m=2, number=1),
        _misplan("forward twice", m=2, number=2),
        "world.misplan.number 2 is outside 0…1 with how 'forward twice'",
    ),
    "a table as a whole": (
        _misplan("lines exchanged", m=2),
        _misplan("lines exchanged", m=2, stage=1),
        "world.misplan.stage 1 is outside 0…0 with how 'lines exchanged'",
    ),
    "lines of two ranks": (
        _misplan("lines exchanged", m=2, p=2),
        _misplan("lines exchanged", m=2, p=1),
        "world.misplan.how 'lines exchanged' needs at least two ranks",
    ),
    "a circle of two microbatches": (
        _misplan("circle", m=2),
        _misplan("circle", m=1),
        "world.misplan.how 'circle' needs at least two microbatches, but there is one",
    ),
}


@pytest.mark.parametrize(("possible", "impossible", "words"), MISPLANS.values(), ids=MISPLANS)
def test_impossible_plans(possible, impossible, words) -> None:
    _one_reason(possible, impossible, words)


# ------------------------------------------------------------------------------------------ whole cases


def _run(m: int = 2, batch_size: int = 4, **fields) -> tuple[Train]:
    return (Train(batch_size=batch_size, num_microbatches=m, **fields),)


def _counted(case: dict | None = None, **loss) -> dict:
    model = Model(width=3, classes=3, stages=(LINEAR, Stage(blocks=(Linear(), Head()))))
    fields = {"kind": "cross_entropy", "reduction": "sum", "counted": True, **loss}
    return {"model": model, "loss": LossSpec(**fields), **(case or {})}


REPLICATED = World(size=4, pipeline_ranks=(0, 1), replicas=Replicas(others=((2, 3),)))
HOOKED = World(size=4, pipeline_ranks=(0, 1), replicas=Replicas(others=((2, 3),), hook=True))
MIXED = World(
    size=4,
    pipeline_ranks=(0, 1),
    replicas=Replicas(others=((2, 3),), wrapper="fully_shard", mixed_precision=True),
)
FLOAT32 = Model(width=3, stages=(LINEAR, LINEAR), dtype="float32")
SLOW = World(size=2, pipeline_ranks=(0, 1), perturbations=(Perturbation(stage=0, milliseconds=1),))
RAGGED = _run(mistake=Mistake(where="batch", how="ragged"))
CARRIED = Model(width=3, stages=(LINEAR, LINEAR), carried=("stream",), container="list")
RAISES = _run(mistake=Mistake(where="reduction", how="raise"))
CASES = {
    "the format": ({"format": 1}, {"format": 2}, "case format 2 is not supported"),
    "a rank": (
        {"world": World(size=2, pipeline_ranks=(0, 1))},
        {"world": World(size=2, pipeline_ranks=())},
        "a pipeline needs at least one rank and one stage per rank, not p = 0, v = 1",
    ),
    "a stage per rank": (
        {"stages_per_rank": 1},
        {"stages_per_rank": 0},
        "a pipeline needs at least one rank and one stage per rank, not p = 2, v = 0",
    ),
    "as many stages": (
        {"stages_per_rank": 1},
        {"stages_per_rank": 2},
        "model.stages has 2 stages, but p = 2 ranks with v = 2 stages each need 4",
    ),
    "a plan": (
        {"world": World(size=2, pipeline_ranks=(0, 1), misplan=Misplan(how="schedule"))},
        {"world": World(size=2, pipeline_ranks=(0, 1), misplan=Misplan(how="schedule", number=1))},
        "world.misplan.number 1",
    ),
    "one sample in every microbatch": (
        {"program": _run(4, 4)},
        {"program": _run(5, 4)},
        "program[0] splits a batch of 4 into 5 microbatches",
    ),
    "a microbatch": (
        {"program": _run(1, 4)},
        {"program": _run(0, 4)},
        "program[0] splits a batch of 4 into 0",
    ),
    "evaluations split batches, too": (
        {"program": (Eval(batch_size=2, num_microbatches=2),)},
        {"program": (*_run(), Eval(batch_size=2, num_microbatches=3))},
        "program[1] splits a batch of 2 into 3",
    ),
    "what is ragged is carried": (
        {"program": RAGGED, "model": CARRIED},
        {"program": RAGGED},
        "program[0].mistake.how 'ragged' changes a second argument",
    ),
    "who reduces has a hook": (
        {"program": RAISES, "world": HOOKED},
        {"program": RAISES, "world": REPLICATED},
        "program[0].mistake is made by a communication hook: it needs world.replicas.hook",
    ),
    "without replicas nobody reduces": (
        {"program": _run(mistake=Mistake(where="loss", how="raise"))},
        {"program": RAISES},
        "program[0].mistake is made by a communication hook: it needs world.replicas.hook",
    ),
    "an optimizer": (
        {"program": (*_run(), Optimize()), "optimizer": Sgd(lr=0.5)},
        {"program": (*_run(), Optimize())},
        "program[1] is an optimizer step, but the case has no optimizer",
    ),
    "autocast in every step": (
        {"program": (*_run(autocast=True), *_run(autocast=True))},
        {"program": (*_run(autocast=True), *_run())},
        "steps of one case all run under autocast, or none",
    ),
    "a scaled loss in float16": (
        {"program": _run(autocast=True), "optimizer": SCALED},
        {"program": _run(), "optimizer": SCALED},
        "optimizer.scaling needs optimizer.masters or steps under autocast",
    ),
    "counted targets of one replica": (
        _counted(),
        _counted({"world": REPLICATED}),
        "loss.counted counts the targets of one batch",
    ),
    "targets that are numbers are changed in place": (
        {"loss": LossSpec(in_place=True)},
        _counted(counted=False, in_place=True),
        "loss.in_place halves targets: it needs loss.kind 'mse'",
    ),
    "a sum is counted": (_counted(), _counted(reduction="mean"), "loss.counted divides a sum"),
    "mixed precision of float32": (
        {"world": MIXED, "model": FLOAT32},
        {"world": MIXED},
        "world.replicas.mixed_precision computes in bfloat16: it needs model.dtype 'float32' and no autocast",
    ),
    "mixed precision without autocast": (
        {"world": MIXED, "model": FLOAT32, "program": _run()},
        {"world": MIXED, "model": FLOAT32, "program": _run(autocast=True)},
        "world.replicas.mixed_precision computes in bfloat16: it needs model.dtype 'float32' and no autocast",
    ),
    "mixed precision of stages given one by one": (
        {"world": MIXED, "model": FLOAT32},
        {"world": MIXED, "model": structs.replace(FLOAT32, split=Split())},
        "world.replicas.mixed_precision cannot be combined with world.tensor or model.split",
    ),
    "a delay": (
        {"world": SLOW},
        {"world": SLOW, "model": Model(width=3, stages=(LINEAR, LINEAR), split=Split())},
        "the stages of a front end cannot be perturbed",
    ),
    "a front end": (
        {"model": Model(width=3, stages=(LINEAR, LINEAR), split=Split())},
        {"world": SLOW, "model": Model(width=3, stages=(LINEAR, LINEAR), split=Split())},
        "the stages of a front end cannot be perturbed",
    ),
}


@pytest.mark.parametrize(("possible", "impossible", "words"), CASES.values(), ids=CASES)
def test_impossible_cases(possible: dict, impossible: dict, words: str) -> None:
    assert isinstance(small_case(**possible), Case)
    with pytest.raises(BadCaseError) as raised:
        small_case(**impossible)
    assert str(raised.value).startswith(words)


def test_replicas_do_not_forbid_losses_that_are_not_counted() -> None:
    assert small_case(**_counted({"world": REPLICATED}, counted=False)).world.num_replicas == 2


def test_surplus_stages_of_a_wrong_plan_are_no_part_of_the_right_one() -> None:
    misplan = Misplan(how="remainder")
    case = with_model(small_case(), stages=(LINEAR, LINEAR))
    wrong = small_case(
        model=Model(width=3, stages=(LINEAR,) * 3),
        world=World(size=2, pipeline_ranks=(0, 1), misplan=misplan),
    )

    assert wrong.without_mistakes == case
