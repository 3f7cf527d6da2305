"""What the harness is measured against: the same work in a bare loop on the same warm processes.

`ranks` builds every case's pipeline in a new group and runs its program; `oracle` runs the same cases on
the full model. Nothing is recorded on the ranks, no result is encoded, and one message goes in and one
out for the whole list. These functions run in rank processes.
"""

from __future__ import annotations

import msgspec
import torch
import torch.distributed as dist

from pipeconform import adapter as contract
from pipeconform.adapter import GradientScale, Mode, Ranks
from pipeconform.adapters.torch_pipelining import TorchPipelining
from pipeconform.case.build import data
from pipeconform.case.case import Case, Eval, Train, Zero
from pipeconform.execute.groups import Retired
from pipeconform.execute.planning import plan_of
from pipeconform.oracle.full_model import reference

RANKS, ORACLE = "bare:ranks", "bare:oracle"


def ranks(context, payload):
    adapter = TorchPipelining()
    description = adapter.describe()
    retired = Retired()  # ending a group beside the next case is no merit of the harness
    for case in msgspec.json.decode(payload, type=list[Case]):
        retired.release()
        group = run(context, adapter, description, case)
        if group is not None:
            retired.add(group)
            del group
    return b""


def run(context, adapter, description, case):
    members = case.world.pipeline_ranks
    group = dist.new_group(list(members))
    member = context.rank in members
    pipeline_ranks = Ranks(
        device=torch.device(context.device),
        rank=context.rank,
        world_size=context.world_size,
        pipeline_ranks=members,
        pipeline_rank=members.index(context.rank) if member else None,
        pipeline_group=group if member else None,
    )
    pipeline = adapter.build(plan_of(case, description, pipeline_ranks))
    for index, step in enumerate(case.program):
        if isinstance(step, Train | Eval):
            batch = data.make_batch(case, index)
            pipeline.run(Mode.TRAIN if isinstance(step, Train) else Mode.EVAL, batch)
        elif isinstance(step, Zero):
            pipeline.apply(contract.ZeroGrad(step.set_to_none))
        else:
            pipeline.apply(contract.OptimizerStep())
    pipeline.close()
    if not member:
        return None
    dist.destroy_process_group(group)
    return group


def oracle(_context, payload):
    scale = GradientScale(at="gradient", input_gradients_scaled=False)
    for case in msgspec.json.decode(payload, type=list[Case]):
        reference(case, scale=scale)
    return b""
