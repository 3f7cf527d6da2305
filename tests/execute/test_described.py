"""What an implementation says of itself is the same in the controller and in every rank, or no case is judged."""

import dataclasses
from dataclasses import replace

import pytest
from pipeconform.reference_impl.adapter import ReferenceAdapter

from pipeconform.adapter import Feature, Placement
from pipeconform.campaign.describing import describe
from pipeconform.campaign.executor import Executor
from pipeconform.errors import ContractError
from pipeconform.execute.described import encoded, told_alike
from pipeconform.execute.implementation import resolve
from pipeconform.ranks.pools import Pools
from tests.case.examples import small_case

TWO_FACED = """
from dataclasses import replace

import torch.distributed as dist

from pipeconform.adapter import Placement
from pipeconform.reference_impl.adapter import ReferenceAdapter


class TwoFaced(ReferenceAdapter):
    def describe(self):
        told = super().describe()
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return told
        first, *others = told.capabilities.schedules
        mirrored = replace(first, placement=Placement.MIRROR, family=None)
        return replace(told, capabilities=replace(told.capabilities, schedules=(mirrored, *others)))
"""


def _changed(**fields):
    told = ReferenceAdapter().describe()
    return replace(told, capabilities=replace(told.capabilities, **fields))


def test_a_rank_goes_by_what_the_controller_was_told():
    told = ReferenceAdapter().describe()

    again = told_alike(encoded(told), ReferenceAdapter().describe())

    assert again == told
    assert again is not told


def test_equal_descriptions_are_equal_bytes():
    claimed = list(ReferenceAdapter().describe().capabilities.features)

    assert encoded(_changed(features=frozenset(claimed))) == encoded(
        _changed(features=frozenset(reversed(claimed)))
    )
    assert encoded(_changed(features=frozenset(claimed[1:]))) != encoded(_changed())


@pytest.mark.parametrize(
    ("here", "named"),
    [
        (_changed(features=frozenset({Feature.OUTPUTS})), r"describe\(\)\.capabilities\.features is "),
        (_changed(world="single_process"), r"capabilities\.world is 'single_process' in this rank, and was "),
        (_changed(schedules=()), r"capabilities\.schedules is \(\) in this rank"),
        (replace(ReferenceAdapter().describe(), name="other"), r"describe\(\)\.name is 'other' in this rank"),
    ],
    ids=["a set", "a word", "fewer", "a name"],
)
def test_what_differs_is_named_with_both_values(here, named):
    with pytest.raises(ContractError, match=named):
        told_alike(encoded(ReferenceAdapter().describe()), here)


def test_hosts_may_have_other_builds_of_a_release():
    told = ReferenceAdapter().describe()

    assert told_alike(encoded(told), replace(told, version=f"{told.version}+cu130")) == told


def test_a_difference_inside_a_schedule_is_named_by_its_place():
    first, *others = ReferenceAdapter().describe().capabilities.schedules
    here = _changed(schedules=(dataclasses.replace(first, max_ranks=1), *others))

    with pytest.raises(ContractError, match=r"capabilities\.schedules\[0\]\.max_ranks is 1 in this rank"):
        told_alike(encoded(ReferenceAdapter().describe()), here)


def test_an_adapter_that_claims_otherwise_in_its_ranks_is_not_judged(tmp_path):
    path = tmp_path / "two_faced.py"
    path.write_text(TWO_FACED)
    reference = resolve(f"{path}:TwoFaced")
    with Pools() as pools:
        told = describe(pools, reference)
        executor = Executor(implementation=reference, description=told, pools=pools)
        execution = executor.execute(small_case())

    assert told.capabilities.schedules[0].placement is Placement.LOOP
    outcome = execution.outcome()
    assert outcome is not None
    assert "placement is <Placement.MIRROR: 'mirror'> in this rank" in outcome.finding.message
