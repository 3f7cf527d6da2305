"""The reference meets every requirement; every fault is caught by its own; torch's wrappers have known verdicts."""

from __future__ import annotations

import re

import pytest
from msgspec import structs
from pipeconform.reference_impl.faults import WRAPPER_FAULTS, Fault

from pipeconform.campaign.again import judge_again
from pipeconform.campaign.campaign import Campaign
from pipeconform.campaign.cell import judge_cell
from pipeconform.campaign.describing import describe, runner_of
from pipeconform.campaign.targets import target_of
from pipeconform.case.any_case import WRAPPER_COLUMN
from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.execute.implementation import resolve
from pipeconform.judge.outcome import Outcome
from pipeconform.ranks.pools import Pools
from pipeconform.report.result import Cell
from pipeconform.spec import profile
from pipeconform.spec.wrappers import wrapper_requirement
from pipeconform.wrappers.registry import WRAPPER_JUDGEMENTS
from tests.facts import tells
from tests.selected import first_of_each

TORCH_BREAKS = {
    "torch-ddp": {
        "DPW-3": "hang",  # the first rank is not told
        "DPW-6": "state changed by nobody",  # what the outermost module has is broadcast although ignored
        "DPW-7": "raised RuntimeError",  # accumulation before the first reduction of a static graph
        "DPW-9": "gradient differs",  # a rank whose backward reaches no parameter takes no part
        "DPW-24": "gradient differs",  # a dataclass with a static graph is never reduced
        "DPW-29": "raised RuntimeError",  # a delayed parameter of another dtype than the default one
        "DPW-32": "gradient differs",  # a gradient penalty with a static graph is never reduced
        "DPW-36": "gradient differs",  # nor is what comes back from a pickle
    },
    "torch-fully-shard": {},
    "torch-fsdp": {"DPW-39": "died: SIGABRT"},  # gradients that one rank has none of, not in float32
}
"""Each confirmed by a script in docs/findings."""
NOW_AND_THEN = {"DPW-29": {"gradient differs", "replicas apart"}}
"""A delayed reduction that is not waited for is mostly done in time (finding 68)."""


def _campaign(pools: Pools, reference: str) -> Campaign:
    full = resolve(reference)
    description = describe(pools, full)
    return Campaign(
        target=target_of(description, profile=profile("smoke"), ranks=(1, 4)),
        runners={"default": runner_of(description, implementation=full, pools=pools)},
        implementation=reference,
    )


def _judged(campaign: Campaign, requirement: str) -> Cell:
    return judge_cell(campaign, wrapper_requirement(requirement), WRAPPER_COLUMN)


def _outcomes(campaign: Campaign, requirement: str, case: WrapperCase) -> tuple[Outcome, ...]:
    return judge_again(case, (wrapper_requirement(requirement),), campaign.runner("default"))[requirement]


def _file(identifier: str) -> str:
    """The file of the suites that states the requirement."""
    return WRAPPER_JUDGEMENTS[identifier].judge.__module__


QUICK_FIRST = sorted(WRAPPER_JUDGEMENTS, key="DPW-42".__ne__)
"""DPW-39 to DPW-41, in the same file, have every pair of sizes, and take longer than all others together."""


@pytest.mark.parametrize("identifier", first_of_each({one: one for one in QUICK_FIRST}, _file))
def test_the_reference_meets_every_requirement(pools: Pools, identifier: str) -> None:
    cell = _judged(_campaign(pools, "reference-wrapper"), identifier)

    assert cell.violations == ()
    assert cell.status == "passed"
    assert cell.judgements > 0


@pytest.mark.parametrize("fault", first_of_each(WRAPPER_FAULTS, lambda fault: _file(fault.requirement)))
def test_a_fault_is_caught_by_the_requirement_it_breaks(pools: Pools, fault: Fault) -> None:
    campaign = _campaign(pools, fault.reference)
    seen = []
    cases = WRAPPER_JUDGEMENTS[fault.requirement].drawn(campaign.target.claims, seed=0)
    # the costliest come last, but of a fault in what is compiled nothing shows in others
    for case in sorted(cases, key=lambda case: case.compiled != fault.name.startswith("compiled")):
        outcomes = _outcomes(campaign, fault.requirement, case)
        seen += [f"{outcome.status}: {outcome.finding.message}" for outcome in outcomes]
        if any(
            o.status == fault.expected_status and re.search(fault.tells, o.finding.message) for o in outcomes
        ):
            return
    pytest.fail(f"{fault.requirement} did not catch it as {fault.expected_status}; seen: {seen}")


@pytest.mark.parametrize("where", ["faulty_wrappers:OtherWorldsSkipped", "faulty_wrappers:CutsOfTheSaver"])
def test_what_depends_on_the_savers_number_of_ranks_shows_between_worlds_only(
    pools: Pools, where: str
) -> None:
    campaign = _campaign(pools, f"pipeconform.reference_impl.faults.{where}")
    cases = WRAPPER_JUDGEMENTS["DPW-35"].drawn(campaign.target.claims, seed=0)
    between = [case for case in cases if case.loaded_by]
    alike = [structs.replace(case, loaded_by=case.ranks) for case in between if case.ranks == 2]

    assert alike
    for case in (*alike, *(case for case in cases if not case.loaded_by)):
        assert _outcomes(campaign, "DPW-35", case) == ()
    assert any(_outcomes(campaign, "DPW-35", case) for case in between)


@pytest.mark.slow
@pytest.mark.parametrize("name", TORCH_BREAKS)
def test_torchs_wrappers_break_what_is_known_and_nothing_else(pools: Pools, name: str) -> None:
    campaign = _campaign(pools, name)
    cells = [_judged(campaign, one) for one in WRAPPER_JUDGEMENTS]
    kinds = {c.requirement: {v.signature for v in c.violations} for c in cells}
    broken = {one: found for one, seen in kinds.items() if (found := seen - NOW_AND_THEN.get(one, set()))}

    assert broken == {one: {kind} for one, kind in TORCH_BREAKS[name].items()}
    assert sum(cell.status == "passed" for cell in cells) >= 7


def test_what_is_not_claimed_is_said_to_be(pools: Pools) -> None:
    cell = _judged(_campaign(pools, "torch-fully-shard"), "DPW-19")

    assert cell.status == "not_claimed"
    assert tells(cell.reason, "torch fully_shard", "does not claim", "join")


@pytest.mark.parametrize(
    ("fault", "status", "explained_by"),
    [
        ("summed-dpw-1", "blocked", "DPW-1"),  # plain gradients are wrong
        ("mappings-become-tuples-dpw-24", "failed", ""),
    ],
)
def test_what_plain_training_shows_as_well_accuses_no_other_requirement(
    pools: Pools, fault: str, status: str, explained_by: str
) -> None:
    cell = _judged(_campaign(pools, WRAPPER_FAULTS[fault].reference), "DPW-24")
    controls = [one.control for one in cell.violations]

    assert cell.status == status
    assert {one.requirement for one in controls if one is not None} == {explained_by}
    assert None not in controls
