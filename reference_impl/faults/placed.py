"""Faults of batches whose tensors are `DTensor`s (FWD-31)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from pipeconform.adapter import Batch, Mode

from .. import placed
from ..adapter import ReferencePipeline
from ..batches import sizes_in
from ..runtime import Work
from .fault import breaks


class _SplitOtherwise(ReferencePipeline):
    """Arguments, or targets, of microbatches are something other than the parts of the batch."""

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        work = super().make_work(mode, batch)
        if not isinstance(batch.target, DTensor):
            return work
        return self.changed(work, batch)

    def changed(self, work: Work, batch: Batch) -> Work:
        raise NotImplementedError


@breaks("FWD-31", tells=r"the loss of microbatch \d is not the reference's")
class TargetsOfOthers(_SplitOtherwise):
    """Targets are split by their place in the batch, although samples are cut over the ranks."""

    def changed(self, work: Work, batch: Batch) -> Work:
        target, sizes = batch.target, sizes_in(batch)
        whole = target.redistribute(placements=[Replicate()])
        found = [
            placed.part_of(whole, sum(sizes[:k]), size, batch_dim=batch.batch_dim, parts=1)
            for k, size in enumerate(sizes)
        ]
        return dataclasses.replace(
            work, targets=[one.redistribute(placements=target.placements) for one in found]
        )


@breaks("FWD-31", tells=r"the input of stage 0 is a plain tensor .* handed over as a DTensor placed")
class PartsOfArguments(_SplitOtherwise):
    """The first stage gets this rank's part of a microbatch as a plain tensor."""

    def changed(self, work: Work, batch: Batch) -> Work:
        return dataclasses.replace(
            work, inputs=[tuple(one.to_local() for one in args) for args in work.inputs]
        )


@breaks(
    "FWD-31", tells=r"the input of stage 0 is a DTensor placed R .* handed over as a DTensor placed S\(\d\)"
)
class GatheredBeforeSplitting(_SplitOtherwise):
    """Every rank gets the whole microbatch: right values, and a message for every one."""

    def changed(self, work: Work, batch: Batch) -> Work:
        def whole(one: DTensor) -> DTensor:
            return one.redistribute(placements=[Replicate()])

        return dataclasses.replace(work, inputs=[tuple(map(whole, args)) for args in work.inputs])


@breaks("FWD-31", tells=r"is a DTensor that says that its whole has the shape \[\d.*\]; it has \[\d")
class SizesOfTheBatch(_SplitOtherwise):
    """Microbatches say that they have as many samples as the whole batch."""

    def changed(self, work: Work, batch: Batch) -> Work:
        def said(one: DTensor) -> DTensor:
            shape = torch.Size((one.shape[0] * batch.num_microbatches, *one.shape[1:]))
            made: DTensor = DTensor.from_local(
                one.to_local(),
                one.device_mesh,
                one.placements,
                run_check=False,
                shape=shape,
                stride=one.stride(),
            )
            return made

        return dataclasses.replace(work, inputs=[tuple(map(said, args)) for args in work.inputs])


@breaks("FWD-31", tells="the output is a plain tensor .* handed over as a DTensor placed")
class PartsOfOutputs(ReferencePipeline):
    """The merged output is this rank's part, as a plain tensor."""

    def make_output(self, outputs: Sequence[Any]) -> Any:
        merged = super().make_output(outputs)
        return merged.to_local() if isinstance(merged, DTensor) else merged


@breaks("FWD-31", tells="the output says that its whole has the shape .*; it has")
class OutputsOfOne(ReferencePipeline):
    """The merged output has all samples and says that it has those of one microbatch."""

    def make_output(self, outputs: Sequence[Any]) -> Any:
        merged = super().make_output(outputs)
        if not isinstance(merged, DTensor):
            return merged
        own: Tensor = merged.to_local()
        shape = outputs[0].shape
        return DTensor.from_local(
            own,
            merged.device_mesh,
            merged.placements,
            run_check=False,
            shape=shape,
            stride=outputs[0].stride(),
        )
