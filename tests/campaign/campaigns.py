"""Campaigns that judge torch's claims and execute nothing."""

from types import SimpleNamespace

import msgspec

from pipeconform.adapter import ErrorContract
from pipeconform.adapters.torch_pipelining import TorchPipelining
from pipeconform.campaign.campaign import Campaign
from pipeconform.campaign.executor import Execution
from pipeconform.campaign.pipeline import PipelineTarget
from pipeconform.campaign.pipeline_runner import PipelineRunner
from pipeconform.case.focus import Limits
from pipeconform.ranks.verdict import Returned, VerdictVector
from pipeconform.spec import profile

CAPABILITIES = TorchPipelining().describe().capabilities


class ExecutesNothing:
    """Executes nothing."""

    description = SimpleNamespace(name="nobody", errors=ErrorContract())
    capabilities = CAPABILITIES

    def claimed_for(self, case):
        return CAPABILITIES

    def execute(self, case, *, observe=()):
        return Execution(case=case, verdicts=VerdictVector((Returned(None, 0.0),)))


def campaign(size="core", *, max_ranks=4, expectations=(), executor=None, **changes):
    """A campaign that judges torch's claims and executes nothing."""
    limits = Limits(capabilities=CAPABILITIES, min_ranks=1, max_ranks=max_ranks)
    sized = msgspec.structs.replace(profile(size), **changes)
    return Campaign(
        target=PipelineTarget(name="nobody", limits=limits, profile=sized),
        runners={"default": PipelineRunner(executor or ExecutesNothing())},
        expectations=expectations,
    )
