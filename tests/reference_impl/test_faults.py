"""Every fault is caught by the requirement it breaks, on a case on which the reference meets it."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pipeconform.reference_impl.adapter import ReferenceAdapter, ReferencePipeline
from pipeconform.reference_impl.faults import FAULTS, Fault
from pipeconform.reference_impl.faults.fault import breaks
from pipeconform.reference_impl.faults.lifecycle import DryRun
from pipeconform.reference_impl.tables import OFFERS

from pipeconform.adapter import Adapter
from pipeconform.campaign.describing import describe
from pipeconform.campaign.executor import Execution, Executor
from pipeconform.campaign.judging import judge
from pipeconform.campaign.trial import cases_of
from pipeconform.case.case import Case
from pipeconform.judge.outcome import Outcome
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.ranks.pools import Pools
from pipeconform.spec import requirement
from tests.schedule.lowering_faults import LOWERING_FAULTS
from tests.selected import first_of_each

REFERENCE = "pipeconform.reference_impl.adapter:ReferenceAdapter"
HERE = Path(importlib.import_module("pipeconform.reference_impl.faults").__file__ or "").parent
NO_FAULTS = {"__init__", "fault", "faulty_wrappers", "page"}
BASES = {"AfterPass", "LocalPipeline", "LocalStep", "SilentLink", "WatchedWork"}
"""What several faults are made of."""


def _executor(pools: Pools, reference: str) -> Executor:
    return Executor(implementation=reference, description=describe(pools, reference), pools=pools)


def _file(fault: Fault) -> str:
    """The file of the suites that states the requirement."""
    return JUDGEMENTS[fault.requirement].judge.__module__


def _judge(executor: Executor, fault: Fault, case: Case) -> tuple[Execution, tuple[Outcome, ...]]:
    execution = executor.execute(case, observe=JUDGEMENTS[fault.requirement].observe)
    return execution, judge(requirement(fault.requirement), execution, executor)


@pytest.mark.parametrize("fault", first_of_each(FAULTS, _file))
def test_a_fault_is_caught_by_the_requirement_it_breaks(pools: Pools, fault: Fault) -> None:
    wrong = _executor(pools, fault.reference)
    seen = []
    for case in cases_of(fault, wrong.description):
        _, outcomes = _judge(wrong, fault, case)
        seen += [f"{outcome.status}: {outcome.finding.kind}" for outcome in outcomes]
        told = [one.finding.message for one in outcomes if one.status == fault.expected_status]
        if told:
            break
    else:
        pytest.fail(f"{fault.requirement} did not catch it as {fault.expected_status}; seen: {seen}")

    assert any(re.search(fault.tells, message) for message in told), told
    _, outcomes = _judge(_executor(pools, REFERENCE), fault, case)
    assert outcomes == ()


def test_what_ran_is_kept_and_the_first_wrong_computation_is_the_one_told(pools: Pools) -> None:
    fault = FAULTS["late-backward"]
    wrong = _executor(pools, fault.reference)

    _, outcomes = _judge(wrong, fault, next(cases_of(fault, wrong.description)))

    outcome = next(one for one in outcomes if one.finding.kind == "not the named order")
    assert outcome.timeline is not None
    assert outcome.first_wrong is not None
    rank, position = outcome.first_wrong
    told = f"computation {position}: {outcome.timeline[rank][position]} where"
    assert told in outcome.finding.message


def _classes() -> Iterator[tuple[Path, ast.ClassDef]]:
    for path in HERE.glob("*.py"):
        if path.stem not in NO_FAULTS:
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    yield path, node


def _is_labelled(node: ast.ClassDef, *labels: str) -> bool:
    return any(ast.unparse(one).partition("(")[0] in labels for one in node.decorator_list)


def test_every_fault_is_listed_and_describes_itself() -> None:
    found = {
        f"pipeconform.reference_impl.faults.{path.stem}:{node.name}"
        for path, node in _classes()
        if _is_labelled(node, "breaks")
    }
    without = {
        node.name
        for _, node in _classes()
        if not _is_labelled(node, "breaks", "breaks_promise") and not node.name.startswith("_")
    }

    assert found == {fault.reference for fault in FAULTS.values()}
    assert without == BASES
    for name, fault in FAULTS.items():
        module, _, attribute = fault.reference.partition(":")
        made = getattr(importlib.import_module(module), attribute)()
        assert isinstance(made, Adapter)
        assert made.__doc__ is not ReferenceAdapter.__doc__
        assert made.describe().capabilities.schedule(fault.schedule) is not None
        assert fault.name == name
        assert fault.summary.endswith(".")
        assert fault.requirement in JUDGEMENTS


def test_every_generator_has_a_fault_and_there_are_enough_of_every_place() -> None:
    places = {name: fault.reference.split(":")[0].rpartition(".")[2] for name, fault in FAULTS.items()}
    generators = {FAULTS[name].schedule for name, place in places.items() if place == "generators"}
    runtime = [name for name, place in places.items() if place in {"wire", "gradients", "scale", "schedules"}]

    assert generators == set(OFFERS)
    assert len(LOWERING_FAULTS) >= 10
    assert len(runtime) >= 10


def test_forty_faults_make_reported_defects_again():
    linked = {name: fault.source for name, fault in FAULTS.items() if fault.source}

    assert len(linked) >= 40
    assert all(
        re.fullmatch(r"https://github\.com/[\w-]+/[\w-]+/(issues|pull)/\d+", s) for s in linked.values()
    )


def test_there_are_faults_for_every_requirement_of_the_suite() -> None:
    covered = {fault.requirement for fault in FAULTS.values()}

    assert covered == set(JUDGEMENTS)


def test_a_fault_cannot_be_made_of_another_one():
    """It would be that fault's adapter with methods that nothing calls."""
    with pytest.raises(TypeError, match="derives from DryRun, which is an adapter"):
        breaks("TRN-9")(type("Other", (DryRun,), {"__doc__": "Another one."}))


def test_two_faults_cannot_have_one_name():
    """The second would take the first one's place, and nothing would try that any more."""
    first = FAULTS["buffers-not-loaded"]
    again = type("BuffersNotLoaded", (ReferencePipeline,), {"__doc__": "The same name elsewhere."})

    with pytest.raises(TypeError, match=r"buffers-not-loaded names two faults, .*:BuffersNotLoaded and"):
        breaks("LIF-4")(again)
    assert FAULTS["buffers-not-loaded"] is first
