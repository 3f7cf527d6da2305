"""An implementation that pipelines nothing: every rank computes the whole model, and shows its own part of it.

It is the reference but for its messages. What a stage needs of one on another rank, a rank computes by itself, on
stages of its own making that tell no recorder; inputs and targets are said to be consumed everywhere.
"""

from __future__ import annotations

from dataclasses import replace

from pipeconform.reference_impl.adapter import ReferenceAdapter
from pipeconform.reference_impl.faults.local import LocalPipeline
from torch import nn

from pipeconform.adapter import Bystander, Description, Feature, Plan

UNCLAIMED = {
    Feature.GRADIENT_NORM,
    Feature.SHARED_ACROSS_RANKS,
    Feature.SHARED_ACROSS_STAGES,
    Feature.STAGE_OPERATIONS,
    Feature.DROPOUT,
}
"""What ranks cannot have without each other, or would have to be written for."""


class BuiltHere(LocalPipeline):
    """The stages of other ranks come from the plan, and those that run here tell no recorder."""

    quiet = True

    def make_copies(self) -> dict[int, nn.Module]:
        plan = self.plan
        found = {s: build() for s, build in enumerate(plan.stages) if s not in self.modules}
        for module in found.values():
            if self.quiet:
                module.recorder = module.timeline = module.intruder = None
        return found


class NeverCommunicates(ReferenceAdapter):
    """The attack: stages of other ranks are built from the plan."""

    pipeline = BuiltHere

    def describe(self) -> Description:
        """The reference's claims, and that every rank is to be given everything."""
        honest = super().describe()
        claims = replace(
            honest.capabilities,
            schedules=tuple(one for one in honest.capabilities.schedules if one.name in ("GPipe", "1F1B")),
            features=honest.capabilities.features - UNCLAIMED,
            inputs_consumed_by="all",
            targets_consumed_by="all",
            tracing=None,
            data_parallel=None,
            tensor_parallel=None,
        )
        return replace(honest, name="never-communicates", capabilities=claims)

    def build(self, plan: Plan) -> Bystander | LocalPipeline:
        return Bystander() if plan.ranks.pipeline_rank is None else super().build(plan)


class _Open(BuiltHere):
    quiet = False


class RunsForeignStages(NeverCommunicates):
    """The same, and the recorders of the foreign stages are left alone."""

    pipeline = _Open
