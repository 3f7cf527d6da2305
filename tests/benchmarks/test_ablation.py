"""A claim left out hides no fault: a sample of `python -m benchmarks.ablation`."""

import pytest
from pipeconform.reference_impl.adapter import ReferenceAdapter
from pipeconform.reference_impl.faults import FAULTS

from benchmarks.ablation.claims import CLAIMS, without
from benchmarks.ablation.page import page
from benchmarks.ablation.running import HOLDS, Record, matters, tried
from pipeconform.adapter import Feature
from pipeconform.campaign.preload import PRELOAD
from pipeconform.ranks.pools import Pools

CLAIMED = ReferenceAdapter().describe().capabilities


@pytest.fixture(scope="module")
def pools():
    with Pools(preload=PRELOAD) as opened:
        yield opened


def test_each_claim_can_be_left_out():
    for name in CLAIMS:
        assert without(CLAIMED, name) != CLAIMED
    assert CLAIMED.features - without(CLAIMED, "outputs").features == {Feature.OUTPUTS}


def test_a_claim_matters_where_a_subject_needs_it():
    kwargs = next(fault for fault in FAULTS.values() if fault.requirement == "FWD-9")

    assert "kwargs" in matters(kwargs, CLAIMED)
    assert "dropout" not in matters(kwargs, CLAIMED)


@pytest.mark.parametrize(
    ("fault", "claim", "outcome"),
    [
        ("stale-activation", "outputs", "detected"),
        ("rounded-to-bfloat16", "microbatch_losses", "detected"),
        (next(f.name for f in FAULTS.values() if f.requirement == "FWD-9"), "kwargs", "not claimed"),
        (next(f.name for f in FAULTS.values() if f.requirement == "COM-2"), "sub_groups", "nothing compared"),
        (next(f.name for f in FAULTS.values() if f.requirement == "FWD-3"), "outputs", "not claimed"),
        ("position-taken-for-process", "sub_groups", "named"),
    ],
)
def test_a_fault_is_found_or_its_cell_says_what_it_is_without(pools, fault, claim, outcome):
    assert tried(FAULTS[fault], claim, CLAIMED, pools).outcome == outcome


def test_what_compared_nothing_refuses_every_level_that_has_the_requirement(pools):
    fault = next(f for f in FAULTS.values() if f.requirement == "COM-2")
    record = tried(fault, "sub_groups", CLAIMED, pools)

    assert "no case had a bystander" in record.detail
    assert record.refused == ("robust", "full")


def test_an_escape_is_shown_as_one():
    found = Record(fault="x", claim="outputs", requirement="FWD-1", outcome="detected")
    escape = Record(fault="y", claim="state", requirement="TRN-9", outcome="ok", detail="3 compared")

    text = page([found, escape], asked=5)

    assert "2 of 5 pairs" in text
    assert "| y | TRN-9 | state | 3 compared |" in text
    assert "None among these." in page([found], asked=5)
    assert "ok" not in HOLDS
