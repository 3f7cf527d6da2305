"""Parts of a case that cannot be are told from ones that differ little and can, each with its one reason.

Of models, test_model.py has the pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pipeconform.case.blocks import Head, Linear, Mlp, Norm
from pipeconform.case.by_hand import UNTIMELY, ByHand, has_neighbour, impossible_by_hand
from pipeconform.case.case import (
    Case,
    Eval,
    Kwarg,
    LossSpec,
    Model,
    Optimize,
    Sgd,
    Split,
    Stage,
    Train,
    World,
)
from pipeconform.case.misplans import Misplan, impossible_misplan
from pipeconform.case.mistakes import Mistake, impossible_mistake
from pipeconform.case.perturbations import Perturbation, SlowLink, impossible
from pipeconform.case.replicas import Replicas, impossible_replicas
from pipeconform.case.tensor_parallel import TensorParallel
from pipeconform.case.world import impossible_world
from pipeconform.errors import BadCaseError
from tests.case.examples import small_case, with_model

LINEAR = Stage(blocks=(Linear(),))


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


def _misplan(how: str, *, num_ranks: int = 2, num_stages: int = 3, **fields) -> Reasons:
    return lambda: impossible_misplan(Misplan(how=how, **fields), num_ranks=num_ranks, num_stages=num_stages)


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
        _misplan("stages", rank=0, num_ranks=2),
        _misplan("stages", rank=0, num_ranks=1),
        "world.misplan.how 'stages' needs at least two ranks",
    ),
    "a remainder": (
        _misplan("remainder", num_ranks=2),
        _misplan("remainder", num_ranks=1),
        "world.misplan.how 'remainder' needs at least two ranks",
    ),
    "two stages on the only rank": (
        _misplan("single", num_ranks=1),
        _misplan("remainder", num_ranks=1),
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
}


@pytest.mark.parametrize(("possible", "impossible", "words"), MISPLANS.values(), ids=MISPLANS)
def test_impossible_plans(possible, impossible, words) -> None:
    _one_reason(possible, impossible, words)


# ------------------------------------------------------------------------------------------ the world


def _late(*ones: Perturbation | SlowLink) -> Reasons:
    return lambda: impossible(ones, num_ranks=2, num_stages=4, runs=(1, 3), num_replicas=2)


def _delay(**fields) -> Perturbation:
    return Perturbation(**{"stage": 0, "milliseconds": 1, **fields})


def _link(**fields) -> SlowLink:
    return SlowLink(**{"rank": 0, "milliseconds": 1, **fields})


NAME = "world.perturbations[0]"
PERTURBATIONS = {
    "the last stage": (_late(_delay(stage=3)), _late(_delay(stage=4)), f"{NAME}.stage 4 is outside 0…3"),
    "the first stage": (_late(_delay(stage=0)), _late(_delay(stage=-1)), f"{NAME}.stage -1 is outside 0…3"),
    "the last rank": (_late(_link(rank=1)), _late(_link(rank=2)), f"{NAME}.rank 2 is outside 0…1"),
    "the first rank": (_late(_link(rank=0)), _late(_link(rank=-1)), f"{NAME}.rank -1 is outside 0…1"),
    "the last run": (_late(_delay(run=1)), _late(_delay(run=2)), f"{NAME}.run 2 is outside 0…1"),
    "the first run": (_late(_delay(run=0)), _late(_delay(run=-1)), f"{NAME}.run -1 is outside 0…1"),
    "the last microbatch of the longest run": (
        _late(_delay(microbatch=2)),
        _late(_delay(microbatch=3)),
        f"{NAME}.microbatch 3 is outside 0…2",
    ),
    "the first microbatch": (
        _late(_delay(microbatch=0)),
        _late(_delay(microbatch=-1)),
        f"{NAME}.microbatch -1",
    ),
    "the last replica": (
        _late(_delay(replica=1)),
        _late(_delay(replica=2)),
        f"{NAME}.replica 2 is outside 0…1",
    ),
    "a replica's link": (_late(_link(replica=0)), _late(_link(replica=-1)), f"{NAME}.replica -1 is outside"),
    "a stop lasts": (
        _late(_delay(what="stop")),
        _late(_delay(what="stop", milliseconds=0)),
        f"{NAME} lasts 0 ms: delays and stops need a duration",
    ),
    "an error does not": (
        _late(_delay(what="error", milliseconds=0)),
        _late(_delay(what="error")),
        f"{NAME} lasts 1 ms: delays and stops need a duration, errors and kills have none",
    ),
    "a link is late for some time": (_late(_link()), _late(_link(milliseconds=0)), f"{NAME} lasts 0 ms"),
    "every one counts": (
        _late(_link(), _delay()),
        _late(_link(), _delay(stage=4)),
        "world.perturbations[1].stage 4",
    ),
    "links do not hide what follows": (
        _late(_link(rank=1), _link(rank=0)),
        _late(_link(rank=1), _link(rank=2)),
        "world.perturbations[1].rank 2",
    ),
}


@pytest.mark.parametrize(("possible", "impossible", "words"), PERTURBATIONS.values(), ids=PERTURBATIONS)
def test_impossible_perturbations(possible, impossible, words) -> None:
    _one_reason(possible, impossible, words)


def _replicas(*others: tuple[int, ...], first: tuple[int, ...] = (0, 1), **fields) -> Reasons:
    return lambda: impossible_replicas(Replicas(others=others, **fields), pipeline_ranks=first, world_size=6)


OF_DDP = "world.replicas: bucket_views, static_graph, find_unused and hook are options of 'ddp'"
REPLICAS = {
    "the last rank": (
        _replicas((2, 5)),
        _replicas((2, 6)),
        "pipelines on ranks [[0, 1], [2, 6]] must be distinct",
    ),
    "ranks of one pipeline": (_replicas((2, 3), (4, 5)), _replicas((2, 3), (2, 3)), "pipelines on ranks"),
    "the first rank": (_replicas((2, 3)), _replicas((2, 3), first=(-1, 1)), "pipelines on ranks [[-1, 1]"),
    "as many ranks": (
        _replicas((2, 3)),
        _replicas((2,)),
        "world.replicas.others [[2]] must have as many ranks",
    ),
    "ascending from replica to replica": (
        _replicas((2, 3), (4, 5)),
        _replicas((4, 5), (2, 3)),
        "world.replicas.others [[4, 5], [2, 3]] must ascend from replica to replica",
    ),
    "ascending in a pipeline": (
        _replicas((2, 3)),
        _replicas((3, 2)),
        "world.replicas.others [[3, 2]] must be asc",
    ),
    "nested": (
        _replicas((2, 3), wrapper="fully_shard", nested=True),
        _replicas((2, 3), nested=True),
        "world.replicas.nested is an option of 'fully_shard'",
    ),
    "one of two options": (
        _replicas((2, 3), static_graph=True),
        _replicas((2, 3), static_graph=True, find_unused=True),
        "world.replicas cannot have both static_graph and find_unused",
    ),
    **{
        f"the option {option}": (
            _replicas((2, 3), **{option: True}),
            _replicas((2, 3), wrapper="fully_shard", **{option: True}),
            OF_DDP,
        )
        for option in ("bucket_views", "static_graph", "find_unused", "hook")
    },
    "no option": (
        _replicas((2, 3), wrapper="fully_shard"),
        _replicas((2, 3), wrapper="fully_shard", hook=True),
        OF_DDP,
    ),
}


@pytest.mark.parametrize(("possible", "impossible", "words"), REPLICAS.values(), ids=REPLICAS)
def test_impossible_replicas(possible, impossible, words) -> None:
    _one_reason(possible, impossible, words)


def _world(*ranks: int, size: int = 4, model: Model | None = None, **fields) -> Reasons:
    model = model or Model(width=4, sequence=4, stages=(LINEAR, LINEAR))
    return lambda: impossible_world(World(size=size, pipeline_ranks=ranks or (0, 1), **fields), model)


def _cut(
    *others: tuple[int, ...], size: int = 6, model: dict | None = None, replicas=None, **fields
) -> Reasons:
    made = Model(**{"width": 4, "sequence": 4, "stages": (LINEAR, LINEAR), **(model or {})})
    maps = {} if fields.get("boundary") else {"maps": "column"}
    tensor = TensorParallel(others=others or ((2, 3),), **{**maps, **fields})
    return _world(size=size, model=made, tensor=tensor, replicas=replicas)


def _sharded(*others: tuple[int, ...], wrapper: str = "fully_shard") -> Reasons:
    """Two replicas on ranks 0, 1 and 2, 3."""
    return _cut(*others, size=8, replicas=Replicas(others=((2, 3),), wrapper=wrapper))


def _second_replica(others: tuple[tuple[int, ...], ...], *, replica: tuple[int, ...]) -> Reasons:
    """Two replicas of which the first is on ranks 0, 4 and 1, 5."""
    replicas = Replicas(others=(replica,), wrapper="fully_shard")
    return _world(0, 4, size=8, replicas=replicas, tensor=TensorParallel(others=others, maps="column"))


KWARG = (Kwarg(stage=0),)
NEEDS = "world.tensor needs one tensor per boundary, batch dimension 0, and no split or ties"
WORLDS = {
    "the last rank": (_world(0, 3), _world(0, 4), "world.pipeline_ranks [0, 4] must be distinct ranks below"),
    "the first rank": (
        _world(0, 3),
        _world(-1, 3),
        "world.pipeline_ranks [-1, 3] must be distinct ranks below",
    ),
    "different ranks": (_world(1, 2), _world(1, 1), "world.pipeline_ranks [1, 1] must be distinct ranks"),
    "ascending ranks": (_world(1, 2), _world(2, 1), "world.pipeline_ranks [2, 1] must be ascending"),
    "different replicas": (
        _world(replicas=Replicas(others=((2, 3),))),
        _world(replicas=Replicas(others=((1, 3),))),
        "pipelines on ranks [[0, 1], [1, 3]] must be distinct ranks",
    ),
    "parts on the last rank": (_cut((2, 5)), _cut((2, 6)), "pipelines on ranks [[0, 1], [2, 6]]"),
    "parts on different ranks": (_cut((2, 3), (4, 5)), _cut((2, 3), (2, 3)), "pipelines on ranks"),
    "parts of the same length": (
        _cut((2, 3)),
        _cut((2,)),
        "world.tensor.others [[2]] must have as many ranks",
    ),
    "parts that ascend": (
        _cut((2, 3), (4, 5)),
        _cut((4, 5), (2, 3)),
        "world.tensor.others [[4, 5], [2, 3]] must ascend from rank to rank of a replica",
    ),
    "parts in ascending order": (
        _cut((2, 3)),
        _cut((3, 2)),
        "world.tensor.others [[3, 2]] must be ascending",
    ),
    "parts of every replica": (
        _sharded((4, 5), (6, 7)),
        _sharded((4, 5)),
        "world.tensor.others [[4, 5]] must be one pipeline, or more, for each of 2 replicas",
    ),
    "parts of the second replica ascend": (
        _second_replica(((1, 5), (3, 7)), replica=(2, 6)),
        _second_replica(((1, 5), (2, 6)), replica=(3, 7)),
        "world.tensor.others [[1, 5], [2, 6]] must ascend from rank to rank of a replica",
    ),
    "replicas of parts are sharded": (
        _sharded((4, 5), (6, 7)),
        _sharded((4, 5), (6, 7), wrapper="ddp"),
        "world.tensor needs replicas in 'fully_shard'",
    ),
    "maps that are cut": (_cut(maps="row"), _cut(maps=""), "world.tensor needs either maps or boundary"),
    "boundaries that are cut": (
        _cut(boundary="width"),
        _cut(boundary="width", maps="row"),
        "world.tensor needs either maps or boundary, and not both",
    ),
    "one tensor": (_cut(), _cut(model={"container": "list"}), NEEDS),
    "stages one by one": (_cut(), _cut(model={"split": Split()}), NEEDS),
    "batch dimension 0": (_cut(), _cut(model={"batch_dim": 1}), NEEDS),
    "no ties": (_cut(), _cut(model={"tied": (0, 1)}), NEEDS),
    "arguments beside the whole stream": (
        _cut(model={"kwargs": KWARG}),
        _cut(model={"kwargs": KWARG}, stream="sequence"),
        NEEDS,
    ),
    "arguments beside whole boundaries": (
        _cut(model={"kwargs": KWARG}),
        _cut(model={"kwargs": KWARG}, boundary="whole"),
        NEEDS,
    ),
    "a sequence that is cut": (
        _cut(stream="sequence"),
        _cut(stream="sequence", model={"sequence": 3}),
        "world.tensor cuts the sequence over 2 ranks: model.sequence 3 must be a multiple",
    ),
    "a sequence over three ranks": (
        _cut((2, 3), (4, 5), stream="sequence", model={"sequence": 3}),
        _cut((2, 3), (4, 5), stream="sequence", model={"sequence": 4}),
        "world.tensor cuts the sequence over 3 ranks",
    ),
    "a sequence that crosses": (
        _cut(boundary="sequence"),
        _cut(boundary="sequence", model={"sequence": 0}),
        "world.tensor cuts the sequence over 2 ranks: model.sequence 0",
    ),
    "a sequence that is whole": (
        _cut(model={"sequence": 3}),
        _cut(stream="sequence", model={"sequence": 3}),
        "world.tensor cuts the sequence over 2 ranks",
    ),
    "layers that can be cut": (
        _cut(model={"stages": (LINEAR, Stage(blocks=(Mlp(), Linear())))}),
        _cut(model={"stages": (LINEAR, Stage(blocks=(Norm(), Linear())))}),
        "world.tensor cannot cut Norm(): expected Linear, Mlp",
    ),
    "norms along the sequence": (
        _cut(stream="sequence", model={"stages": (LINEAR, Stage(blocks=(Linear(), Norm())))}),
        _cut(stream="sequence", model={"stages": (LINEAR, Stage(blocks=(Linear(), Head())))}),
        "world.tensor cannot cut Head(): expected Linear, Mlp, Norm",
    ),
    "any layer between cut boundaries": (
        _cut(boundary="width", model={"stages": (LINEAR, Stage(blocks=(Norm(), Linear())))}),
        _cut(model={"stages": (Stage(blocks=(Linear(), Norm())), LINEAR)}),
        "world.tensor cannot cut Norm()",
    ),
}


@pytest.mark.parametrize(("possible", "impossible", "words"), WORLDS.values(), ids=WORLDS)
def test_impossible_worlds(possible, impossible, words) -> None:
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
    "counted targets of one replica": (
        _counted(),
        _counted({"world": REPLICATED}),
        "loss.counted counts the targets of one batch",
    ),
    "a sum is counted": (_counted(), _counted(reduction="mean"), "loss.counted divides a sum"),
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
