"""Cases and claims that the tests of several packages start from."""

from __future__ import annotations

import msgspec

from pipeconform.adapter import (
    BoundaryClaim,
    Capabilities,
    DataParallelClaim,
    Feature,
    Placement,
    ScheduleClaim,
    TensorParallelClaim,
    TracingClaim,
)
from pipeconform.case.blocks import Linear
from pipeconform.case.case import Case, Model, Stage, Train, World, Zero
from pipeconform.case.replicas import Replicas

EVERYTHING = Capabilities(
    schedules=(
        ScheduleClaim(name="GPipe", family="gpipe"),
        ScheduleClaim(name="ForwardOnly", trains=False, family="forward_only"),
        ScheduleClaim(
            name="V", placement=Placement.V, stages_per_rank=(2,), split_backward=True, family="zb_v"
        ),
    ),
    features=frozenset(Feature),
    boundary=BoundaryClaim(
        max_tensors=5,
        containers=("tensor", "tuple", "list"),
        dtypes=("float64", "float32", "bfloat16", "float16"),
        min_ndim=0,
        max_ndim=5,
        no_grad_tensors=True,
        non_float_tensors=True,
        empty_tensors=True,
        complex_tensors=True,
    ),
    tracing=TracingClaim(kwargs="all", number_kwargs=True, skips=True, tied=True, knows_boundaries=True),
    data_parallel=DataParallelClaim(
        wrappers=("ddp", "fully_shard"),
        options=("bucket_views", "static_graph", "find_unused", "hook", "nested", "mixed_precision"),
        accumulation=True,
        synchronised_norms=True,
    ),
    tensor_parallel=TensorParallelClaim(
        sequence=True,
        sharded=True,
        boundaries=("sequence", "width", "whole"),
        batches=("samples", "sequence", "width", "whole"),
    ),
    reductions=("mean", "sum"),
    sub_groups=True,
)


def small_case(**changes: object) -> Case:
    """Two linear stages on two ranks, two microbatches, two training steps."""
    stage = Stage(blocks=(Linear(),))
    train = Train(batch_size=4, num_microbatches=2)
    fields: dict[str, object] = {
        "model": Model(width=3, stages=(stage, stage)),
        "schedule": "GPipe",
        "world": World(size=2, pipeline_ranks=(0, 1)),
        "program": (train, Zero(), train),
        "seed": 7,
    }
    return Case(**{**fields, **changes})  # type: ignore[arg-type]


def with_model(case: Case, **changes: object) -> Case:
    """`case` with fields of its model replaced."""
    return msgspec.structs.replace(case, model=msgspec.structs.replace(case.model, **changes))


def in_mixed_precision(case: Case) -> Case:
    """`case` on ranks 0 and 1 with another replica on 2 and 3, in shards that compute in bfloat16."""
    replicas = Replicas(others=((2, 3),), wrapper="fully_shard", mixed_precision=True)
    world = msgspec.structs.replace(case.world, size=4, replicas=replicas)
    return msgspec.structs.replace(with_model(case, dtype="float32"), world=world)
