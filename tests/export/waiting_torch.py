"""torch's engine, given other numbers of microbatches on its ranks: it waits for ever."""

from __future__ import annotations

from dataclasses import replace

from pipeconform.adapter import Pipeline, Plan
from pipeconform.adapters.torch_pipelining import TorchPipelining


class Waits(TorchPipelining):
    """The last rank waits for a microbatch that nobody sends."""

    def build(self, plan: Plan) -> Pipeline:
        more = plan.ranks.pipeline_rank == plan.last_rank
        return super().build(replace(plan, num_microbatches=plan.num_microbatches + more))
