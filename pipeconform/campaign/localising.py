"""Executes a failing case once more and compares every tensor that passes between stages."""

from __future__ import annotations

from collections.abc import Sequence

from pipeconform.campaign.executor import Executor
from pipeconform.case.blocks import SyncedNorm
from pipeconform.case.case import Case
from pipeconform.judge.data_parallel import replicas_of
from pipeconform.judge.localise.localisation import locate, locate_among
from pipeconform.judge.outcome import Outcome, Status
from pipeconform.judge.whole_stages import by_stages
from pipeconform.observe.localisation import Localisation

__all__ = ["is_numeric", "localise"]

_ABOUT_VALUES = ("output", "loss", "total loss", "scale", "gradient", "parameter", "buffer", "boundary")
"""How the signatures of wrong values begin; other signatures are about which rank has a value."""


def is_numeric(outcome: Outcome) -> bool:
    """Whether a verdict is about values, so that there is a first wrong value to find."""
    finding = outcome.finding
    about = finding.mismatch is not None or finding.kind.startswith(_ABOUT_VALUES)
    return outcome.status is Status.FAILED and about


def localise(case: Case, outcomes: Sequence[Outcome], executor: Executor) -> Localisation | None:
    """Execute `case` once more and find the first wrong tensor.

    Returns None if no verdict is about values, if stages compute over several ranks, or if a rank does not return
    this time. Each replica of the pipeline is compared with the model on its own data. For stages made by a front end,
    results are always compared, and boundary tensors where the oracle knows them.

    Raises:
        HarnessError: the harness failed.
    """
    together = case.world.tensor is not None or case.has(SyncedNorm)
    if together or case.is_mistaken or not any(map(is_numeric, outcomes)):
        return None
    execution = executor.execute(case, observe=("gradients",))
    if execution.outcome() is not None:
        return None
    evidence = executor.evidence(execution, flow=True)
    copied = executor.evidence(execution, copied=True, flow=True)
    if case.model.split is not None:
        return locate(by_stages(evidence), by_stages(copied))
    if case.world.replicas is None:
        return locate(evidence, copied)
    return locate_among(list(zip(replicas_of(evidence), replicas_of(copied), strict=True)))
