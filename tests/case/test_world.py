"""Worlds and what befalls them: what cannot be is told from what differs little and can, with its one reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pipeconform.case.blocks import Head, Linear, Mlp, Norm
from pipeconform.case.case import (
    Kwarg,
    Model,
    Split,
    Stage,
    World,
)
from pipeconform.case.perturbations import Perturbation, SlowLink, impossible
from pipeconform.case.replicas import Replicas, impossible_replicas
from pipeconform.case.tensor_parallel import TensorParallel
from pipeconform.case.world import impossible_world

LINEAR = Stage(blocks=(Linear(),))


Reasons = Callable[[], Iterator[str]]


def _one_reason(possible: Reasons, impossible: Reasons, words: str) -> None:
    assert list(possible()) == []
    (reason,) = impossible()
    assert reason.startswith(words)


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
        "world.replicas: nested and mixed_precision are options of 'fully_shard'",
    ),
    "mixed precision": (
        _replicas((2, 3), wrapper="fully_shard", mixed_precision=True),
        _replicas((2, 3), mixed_precision=True),
        "world.replicas: nested and mixed_precision are options of 'fully_shard'",
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
    "stages that are computed again": (
        _world(recompute=True),
        _world(recompute=True, model=Model(width=4, stages=(LINEAR, LINEAR), split=Split())),
        "world.recompute needs stages that are given one by one",
    ),
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
    "maps that are cut": (
        _cut(maps="row"),
        _cut(maps=""),
        "world.tensor needs one of maps, boundary and batch",
    ),
    "boundaries that are cut": (
        _cut(boundary="width"),
        _cut(boundary="width", maps="row"),
        "world.tensor needs one of maps, boundary and batch",
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
