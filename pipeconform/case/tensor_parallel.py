"""Stages that are cut over several ranks, as data, and how the layers of a stage are cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from pipeconform.case import blocks
from pipeconform.case.model import Model
from pipeconform.case.strict import Strict
from pipeconform.contract.tensor import CutLayer, Held

__all__ = ["TensorParallel", "cut_dim", "impossible_samples", "impossible_tensor_parallel", "layers_of"]


class TensorParallel(Strict, frozen=True, kw_only=True):
    """Every stage is on several ranks: tensor-parallel rank 0 of replica d is in the d-th pipeline of the world.

    With D replicas, tensor-parallel rank t ≥ 1 of replica d runs on ``others[(t - 1)·D + d]``, in the order of its
    stages.
    """

    others: tuple[tuple[int, ...], ...]
    maps: Literal["", "column", "row"] = ""
    """How linear maps are cut; an `Mlp` is always cut by columns in its first map and by rows in its second.

    If empty, every rank has the whole stage, and the case is about `boundary` or `batch`.
    """
    stream: Literal["whole", "sequence"] = "whole"
    """The part of the main stream that a rank holds between the maps of a stage."""
    boundary: Literal["", "whole", "sequence", "width"] = ""
    """The placement of the `DTensor`s that pass between stages."""
    batch: Literal["", "whole", "samples", "sequence", "width"] = ""
    """The placement of arguments and outputs that are `DTensor`s."""
    target: Literal["alike", "whole"] = "alike"
    """The placement of targets, if those of the batch are given: `batch`, as far as they have that dimension."""


_CUT = (blocks.Linear, blocks.Mlp, blocks.Norm)


def impossible_tensor_parallel(
    tensor: TensorParallel,
    model: Model,
    *,
    pipelines: Sequence[Sequence[int]],
    num_replicas: int,
    world_size: int,
) -> Iterator[str]:
    """Yield the reasons why tensor-parallel stages are impossible; `pipelines` are all of the world's."""
    name, num = "world.tensor", 1 + len(tensor.others) // num_replicas
    others = list(map(list, tensor.others))
    if len(tensor.others) % num_replicas or not tensor.others:
        yield f"{name}.others {others} must be one pipeline, or more, for each of {num_replicas} replicas"
    everybody = [rank for pipeline in pipelines for rank in pipeline]
    if len({len(pipeline) for pipeline in pipelines}) > 1:
        yield f"{name}.others {others} must have as many ranks each as world.pipeline_ranks"
    elif any(
        list(place) != sorted(place)
        for d in range(num_replicas)
        for place in zip(*pipelines[d::num_replicas], strict=True)
    ):
        yield f"{name}.others {others} must ascend from rank to rank of a replica at every place"
    if len(set(everybody)) != len(everybody) or not all(0 <= rank < world_size for rank in everybody):
        yield f"pipelines on ranks {list(map(list, pipelines))} must be distinct ranks below world.size {world_size}"
    if any(list(pipeline) != sorted(pipeline) for pipeline in tensor.others):
        yield f"{name}.others {others} must be ascending, as a process group's ranks are"
    if len([one for one in (tensor.maps, tensor.boundary, tensor.batch) if one]) != 1:
        yield f"{name} needs one of maps, boundary and batch"
    if tensor.batch and (
        model.tokens or model.output != "tensor" or model.input_requires_grad or model.merged
    ):
        yield f"{name}.batch needs a model from one tensor to one tensor, and arguments without gradients"
    if tensor.target == "whole" and not tensor.batch:
        yield f"{name}.target is how targets are placed beside a batch: it needs {name}.batch"
    if (
        model.container != "tensor"
        or model.split is not None
        or model.batch_dim
        or model.tied
        or (model.kwargs and (tensor.boundary or tensor.batch or tensor.stream != "whole"))
    ):
        yield (
            f"{name} needs one tensor per boundary, batch dimension 0, and no split or ties; keyword arguments "
            f"only where every rank has the whole stream"
        )
    if "sequence" in (tensor.stream, tensor.boundary, tensor.batch) and (
        not model.sequence or model.sequence % num
    ):
        yield f"{name} cuts the sequence over {num} ranks: model.sequence {model.sequence} must be a multiple of it"
    if tensor.maps:
        allowed = _CUT if tensor.stream == "sequence" else _CUT[:2]
        for stage in model.stages:
            for block in stage.blocks:
                if not isinstance(block, allowed):
                    yield f"{name} cannot cut {block!r}: expected {', '.join(kind.__name__ for kind in allowed)}"


def impossible_samples(tensor: TensorParallel, runs: Iterable[tuple[int, int]], *, num: int) -> Iterator[str]:
    """Yield the batches, as numbers of samples and of microbatches, that cannot be cut over `num` ranks."""
    for samples, num_microbatches in runs if tensor.batch == "samples" else ():
        if samples % (num * num_microbatches):
            yield (
                f"world.tensor.batch cuts {samples} samples over {num} ranks, and each part into {num_microbatches} "
                f"microbatches: expected a multiple of {num * num_microbatches}"
            )


def layers_of(tensor: TensorParallel, model: Model, stage: int) -> dict[str, CutLayer]:
    """How the submodules of a stage are cut, by name."""
    if not tensor.maps:
        return {}
    found: dict[str, CutLayer] = {}
    stream: Held = tensor.stream
    for place, block in enumerate(model.stages[stage].blocks):
        name = f"blocks.{place}"
        match block:
            case blocks.Linear():
                found[name] = CutLayer(style=tensor.maps, takes=stream, gives=stream)
            case blocks.Mlp():
                found[f"{name}.up"] = CutLayer(style="column", takes=stream, gives="width")
                found[f"{name}.down"] = CutLayer(style="row", takes="width", gives=stream)
            case _:
                found[name] = CutLayer(style="sequence", takes=stream, gives=stream)
    return found


def cut_dim(layers: dict[str, CutLayer], parameter: str) -> int | None:
    """The dimension in which a parameter is cut over the tensor-parallel ranks; None if every rank has all of it."""
    layer, _, kind = parameter.rpartition(".")
    style = layers[layer].style if layer in layers else "sequence"
    if style == "column":
        return 0
    return 1 if style == "row" and kind == "weight" else None
