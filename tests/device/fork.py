"""An adapter of a vendor's fork of torch's pipelining (``testdev.pipelining``): what it claims, and where it stands in
for torch's classes."""

from __future__ import annotations

import dataclasses

from testdev.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules

from pipeconform.adapter import Description, Feature
from pipeconform.adapters.torch_pipelining import TorchPipelining

__all__ = ["Fork"]

_UNTRIED = {Feature.DEFERRED_WEIGHTS, Feature.STAGE_OPERATIONS, Feature.DECLARED_TABLE, Feature.COMPILED}
_UNMENDED = {
    *(Feature.DECLARED_BOUNDARIES, Feature.MERGE_DIMS, Feature.WHOLE_OUTPUTS, Feature.CUSTOM_MERGES),
    *(Feature.STRUCTURED_OUTPUTS, Feature.MAPPING_OUTPUTS, Feature.UNUSED_PARAMETERS, Feature.FREEZING),
}
"""What torch 2.13 violates and the fork leaves as it is, so that its vendor does not claim it; complex tensors, too."""


class Fork(TorchPipelining):
    """The fork under GPipe."""

    def describe(self) -> Description:
        torchs = super().describe()
        claims = torchs.capabilities
        claims = dataclasses.replace(
            claims,
            schedules=tuple(one for one in claims.schedules if one.name == "GPipe"),
            features=claims.features - _UNTRIED - _UNMENDED,
            boundary=dataclasses.replace(claims.boundary, complex_tensors=False),
            tracing=None,
            data_parallel=None,
            tensor_parallel=None,
        )
        return dataclasses.replace(
            torchs,
            name="a vendor's fork of torch's pipelining",
            capabilities=claims,
            packages=("testdev.pipelining", *torchs.packages),
            variants={},
        )

    def setup_process(self) -> None:
        pipelining.PipelineStage = PipelineStage
        schedules.ScheduleGPipe = ScheduleGPipe  # torch finds its schedules by their names
