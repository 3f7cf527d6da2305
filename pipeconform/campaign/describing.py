"""Asks an implementation for its description and builds the runner for its cases.

Only this module and `pipeconform.campaign.targets` distinguish pipelines from data-parallel wrappers.
"""

from __future__ import annotations

from typing import Any

from pipeconform.adapter import Description
from pipeconform.campaign.executor import Executor
from pipeconform.campaign.known_answers import KnownAnswers
from pipeconform.campaign.options import TIME_LIMIT
from pipeconform.campaign.pipeline_runner import PipelineRunner
from pipeconform.campaign.runner import Runner
from pipeconform.campaign.wrapper_runner import WrapperRunner
from pipeconform.errors import BadAdapterError, ContractError, HarnessError
from pipeconform.execute.described import TASK, Described
from pipeconform.ranks.answered import ask_implementation
from pipeconform.ranks.protocols import RankPools
from pipeconform.ranks.verdict import Died, Raised, Stuck
from pipeconform.wrapper import WrapperDescription

__all__ = ["AnyDescription", "describe", "runner_of"]

AnyDescription = Description | WrapperDescription


def describe(pools: RankPools, implementation: str, *, time_limit: float = 120.0) -> AnyDescription:
    """Import the implementation in a rank process and return its description.

    Raises:
        BadAdapterError: the import or `describe()` raised, ended the process or hung; the message says which.
        ContractError: one of its methods does not accept the arguments it is called with.
        HarnessError: the process was lost for another reason.
    """
    vector = ask_implementation(pools, TASK, implementation, answer=Described, time_limit=time_limit)
    verdict = vector[0]
    match verdict:
        case Raised(type=kind, message=message):
            name = kind.rpartition(".")[2]
            if name in ("BadAdapterError", "ContractError"):
                raise (ContractError if name == "ContractError" else BadAdapterError)(message)
            raise BadAdapterError(f"--impl {implementation!r} cannot be described: {kind}: {message}")
        case Died(lost=""):
            raise BadAdapterError(
                f"--impl {implementation!r}: importing it or calling its describe() ended the process ({verdict.how}); "
                f"expected a Description to be returned\n{vector.describe()}"
            )
        case Stuck():
            raise BadAdapterError(
                f"--impl {implementation!r}: importing it or calling its describe() did not end; expected a "
                f"Description to be returned without waiting for anything\n{vector.describe()}"
            )
    if not vector.ok:
        raise HarnessError(f"describing {implementation!r} failed:\n{vector.describe()}")
    found: Described = vector.values[0]
    return found.kind.description


def runner_of(
    description: AnyDescription,
    *,
    implementation: str,
    pools: RankPools,
    known_answers: KnownAnswers | None = None,
    time_limit: float = TIME_LIMIT,
    coverage: str = "",
) -> Runner[Any, Any]:
    """The runner for an implementation with this description, in these processes.

    Sets the processes' idle limit to the patience that the implementation claims. Runners of pipelines may share
    `known_answers`. `time_limit` is in seconds for one case, `coverage` as in `Executor`.
    """
    if isinstance(description, WrapperDescription):
        pools.idle_limit = description.claims.patience
        return WrapperRunner(
            implementation=implementation,
            description=description,
            pools=pools,
            time_limit=time_limit,
            coverage=coverage,
        )
    pools.idle_limit = description.capabilities.patience
    return PipelineRunner(
        Executor(
            implementation=implementation,
            description=description,
            pools=pools,
            coverage=coverage,
            known_answers=known_answers or KnownAnswers(),
            time_limit=time_limit,
        )
    )
