"""What the reference claims: everything in the contract, with the schedules that it has tables for."""

from __future__ import annotations

from pipeconform.adapter import (
    BoundaryClaim,
    Capabilities,
    DataParallelClaim,
    ErrorContract,
    Feature,
    GradientScale,
    MistakeKind,
    TensorParallelClaim,
    TracingClaim,
)

from .tables import OFFERS

__all__ = ["CAPABILITIES", "ERRORS"]

CAPABILITIES = Capabilities(
    schedules=tuple(offer.claim for offer in OFFERS.values()),
    features=frozenset(Feature),
    boundary=BoundaryClaim(
        max_tensors=8,
        containers=("tensor", "tuple", "list", "mapping"),
        dtypes=("float64", "float32", "bfloat16", "float16"),
        min_ndim=0,
        max_ndim=5,
        no_grad_tensors=True,
        non_float_tensors=True,
        empty_tensors=True,
        complex_tensors=True,
    ),
    scale=GradientScale(at="loss", input_gradients_scaled=True),
    reductions=("mean", "sum"),
    sub_groups=True,
    kwargs_scope="stage",
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
)


ERRORS = ErrorContract(
    promises={
        MistakeKind.INPUT_SHAPE: ("ValueError",),
        MistakeKind.INPUT_DTYPE: ("ValueError",),
        MistakeKind.OUTPUT_SHAPE: ("StageError",),
        MistakeKind.OUTPUT_DTYPE: ("StageError",),
        MistakeKind.ARITY: ("ValueError", "StageError"),
        MistakeKind.NO_TENSOR: ("TypeError", "StageError"),
        MistakeKind.GRADIENT: ("StageError",),
        MistakeKind.BATCH: ("ValueError",),
        MistakeKind.SOURCE: ("ValueError",),
        MistakeKind.NO_GRADIENTS: ("RuntimeError",),
        MistakeKind.EXCEPTION: ("StageError",),
        MistakeKind.PLAN: ("ValueError",),
        MistakeKind.NEIGHBOURS: ("ValueError",),
        MistakeKind.TABLE: ("ValueError", "BadTableError"),
    },
    tells_others=True,
)
