"""Violations whose programs are run: of the faults of the reference, and of the adapters that are built in."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pipeconform.campaign.again import Sought, judge_again
from pipeconform.campaign.describing import describe, runner_of
from pipeconform.campaign.runner import Runner
from pipeconform.campaign.trial import Fault, cases_of
from pipeconform.case.any_case import AnyCase
from pipeconform.commands.stored import Stored
from pipeconform.execute.implementation import resolve
from pipeconform.export.question import Question
from pipeconform.ranks.pools import Pools
from pipeconform.report.result import Implementation, read_result
from pipeconform.spec.wrappers import any_requirement

__all__ = ["USED_WRONGLY", "Asked", "WrongUse", "honest", "of_fault", "of_result", "question", "runner"]

_MORE_EXECUTIONS = 2
_CHANCES = 3
"""How many cases a fault may have that show it by chance, before the last of them is taken."""
_SETTINGS = {"default": {}, "validated": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}}
_RIGHT = {
    "pipeline": "pipeconform.reference_impl.adapter:ReferenceAdapter",
    "wrapper": "pipeconform.reference_impl.wrapper_adapter:ReferenceWrapper",
}
_RIGHT_IN_ONE_PROCESS = "pipeconform.reference_impl.single_process:SingleProcessReference"


@dataclass(frozen=True, kw_only=True)
class WrongUse:
    """A `Fault` that is in how a built-in adapter, `right`, is used and not in an engine."""

    name: str
    right: str
    distribution: str
    """What has to be installed."""
    summary: str
    requirement: str
    schedule: str
    reference: str
    tells: str
    also: tuple[str, ...] = ()
    expected_status: str = "failed"
    or_hangs: bool = False

    @property
    def is_installed(self) -> bool:
        """Whether the engine can be used here."""
        return next(metadata.distributions(name=self.distribution), None) is not None


_WRONG_USES = "benchmarks/programs/wrong_uses.py"  # from the folder of this repository
USED_WRONGLY = (
    WrongUse(
        name="torchgpipe-averages-twice",
        right="torchgpipe",
        distribution="torchgpipe",
        summary="the gradient is divided by m once more",
        requirement="TRN-3",
        schedule="GPipe",
        reference=f"{_WRONG_USES}:AveragesTwice",
        tells="times the reference's",
    ),
    WrongUse(
        name="megatron-lm-averages-twice",
        right="megatron-lm",
        distribution="megatron-core",
        summary="the gradient is divided by m once more; what the engine itself does wrong shows by chance",
        requirement="TRN-3",
        schedule="1F1B",
        reference=f"{_WRONG_USES}:AveragesTwiceInMegatronLM",
        tells="times the reference's",
    ),
    WrongUse(
        name="dualpipe-averages-twice",
        right="dualpipe",
        distribution="dualpipe",
        summary="the gradient is divided by m; what the engine itself does wrong, the reference has no schedule for",
        requirement="TRN-3",
        schedule="DualPipe",
        reference=f"{_WRONG_USES}:AveragesTwiceInDualPipe",
        tells="times the reference's",
    ),
    WrongUse(
        name="dualpipe-default-averages-twice",
        right="dualpipe-default",
        distribution="dualpipe",
        summary="the gradient is divided by m; what the engine itself does wrong, the reference has no schedule for",
        requirement="TRN-3",
        schedule="DualPipe",
        reference=f"{_WRONG_USES}:AveragesTwiceInDualPipeDefault",
        tells="times the reference's",
    ),
    WrongUse(
        name="galvatron-averages-twice",
        right="galvatron",
        distribution="hetu-galvatron",
        summary="the gradient is divided by m once more",
        requirement="TRN-3",
        schedule="1F1B",
        reference=f"{_WRONG_USES}:AveragesTwiceInGalvatron",
        tells="times the reference's",
    ),
    WrongUse(
        name="fully-shard-halves-outputs",
        right="torch-fully-shard",
        distribution="torch",
        summary="outputs are halved",
        requirement="DPW-1",
        schedule="",
        reference=f"{_WRONG_USES}:HalvesOutputs",
        tells="differs",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A violation, who shows it, and who is right in the same case."""

    implementation: str
    mended: str
    question: Question
    found: str


def question(case: AnyCase, sought: Sought) -> Question:
    """The question whether a case shows a violation, in the default environment."""
    return Question(engine="engine 1.0", case=case, requirements=(sought.requirement,), sought=sought)


def runner(pools: Pools, reference: str) -> Runner:
    """What executes and judges cases with an implementation, named as ``--impl`` takes it."""
    full = resolve(reference)
    return runner_of(describe(pools, full), implementation=full, pools=pools)


def of_fault(fault: Fault, pools: Pools) -> Asked | None:
    """The first of the suite's cases that shows a fault in three executions of three; None if it is never seen.

    A fault that answers to a delay may be caught by chance on a case whose delay is too short for it; where no case
    shows it each time, it is the last one tried.
    """
    one, by_chance = runner(pools, fault.reference), []
    for case in cases_of(fault, describe(pools, resolve(fault.reference))):
        first = _seen(case, fault, one)
        if first is None:
            continue
        by_chance.append((case, first))
        certain = all(_seen(case, fault, one) == first for _ in range(_MORE_EXECUTIONS))
        if certain or len(by_chance) == _CHANCES:
            break
    if not by_chance:
        return None
    return Asked(
        implementation=fault.reference,
        mended=honest(fault),
        question=question(*by_chance[-1]),
        found=f"{fault.requirement} {fault.expected_status}: {fault.summary}",
    )


def _seen(case: AnyCase, fault: Fault, one: Runner) -> Sought | None:
    """What one execution of a case shows of a fault."""
    row, hung = any_requirement(fault.requirement), fault.expected_status == "hung"
    for outcome in judge_again(case, (row,), one, hung=hung)[row.id]:
        if outcome.status == fault.expected_status and re.search(fault.tells, outcome.finding.message):
            return Sought(requirement=row.id, status=outcome.status, signature=outcome.finding.kind)
    return None


def honest(fault: Fault) -> str:
    """The adapter that a fault is a change of: the reference, or what is built in."""
    if isinstance(fault, WrongUse):
        return fault.right
    module, _, name = fault.reference.partition(":")
    found = getattr(importlib.import_module(module), name)
    kinds = (found if isinstance(found, type) else type(found)).__mro__
    base = next(kind for kind in kinds if ".faults" not in kind.__module__)
    return f"{base.__module__}:{base.__qualname__}"


def _right(judged: Implementation) -> str:
    """The reference of the kind of what was judged."""
    alone = judged.kind == "pipeline" and judged.capabilities["world"] == "single_process"
    return _RIGHT_IN_ONE_PROCESS if alone else _RIGHT[judged.kind]


def of_result(file: Path) -> Iterator[tuple[str, Asked]]:
    """The first violation of each requirement in a result, with its name; the reference is right in the same case."""
    result, seen = read_result(file), set()
    for cell in result.cells:
        for one in cell.violations:
            if cell.requirement in seen:
                continue
            seen.add(cell.requirement)
            stored = Stored(
                name=one.id, case=one.case, requirement=cell.requirement, variant=cell.variant, violation=one
            )
            asked = Question(
                engine=f"{result.implementation.name} {result.implementation.version}",
                case=one.case,
                requirements=(cell.requirement,),
                sought=stored.sought,
                variant=cell.variant,
                settings=_SETTINGS[cell.variant],
            )
            yield (
                one.id,
                Asked(
                    implementation=result.implementation.reference,
                    mended=_right(result.implementation),
                    question=asked,
                    found=stored.words,
                ),
            )
