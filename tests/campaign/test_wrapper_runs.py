"""A run of a wrapper has what a run of a pipeline has: variants, devices, kept cases, results of an earlier run."""

from pathlib import Path

import msgspec
import pytest
import torch

from pipeconform.campaign.campaign import Campaign
from pipeconform.campaign.cell import judge_cell
from pipeconform.campaign.describing import describe
from pipeconform.campaign.kept import read_judged
from pipeconform.campaign.options import Options
from pipeconform.campaign.setup import campaign_of
from pipeconform.campaign.telling import environment_of, implementation_of, weights
from pipeconform.campaign.told import Weight
from pipeconform.case.any_case import WRAPPER_COLUMN, decode_any_case
from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.contract.placing import placed
from pipeconform.errors import BadAdapterError, UnknownNameError, UsageError
from pipeconform.ranks.pools import Pools
from pipeconform.report.result import Cell, read_result
from pipeconform.spec.wrappers import wrapper_requirement
from pipeconform.wrapper import WrapperClaims, WrapperDescription
from pipeconform.wrappers.modules import batch_of, build
from tests.report.conftest import make

__all__ = ["make"]

VARIED = f"{Path(__file__).with_name('varied_wrappers.py')}:"
WRONG = "pipeconform.reference_impl.faults.faulty_wrappers:Summed"


def options(implementation: str = "reference-wrapper", **others: object) -> Options:
    return Options(
        **{"implementation": implementation, "profile": "smoke", "examples": 1, "ranks": (1, 2), **others}
    )


def judged(campaign: Campaign, requirement: str = "DPW-1", variant: str = "default") -> Cell:
    return judge_cell(campaign, wrapper_requirement(requirement), WRAPPER_COLUMN, variant)


def test_a_wrapper_describes_itself_in_the_same_answer_as_a_pipeline():
    with Pools() as pools:
        asked = []
        run, pools.oracle.run = pools.oracle.run, lambda *a, **b: (asked.append(a), run(*a, **b))[1]
        found = describe(pools, "pipeconform.adapters.torch_wrappers:TorchDdp")

    assert isinstance(found, WrapperDescription)
    assert found.name == "torch DDP"
    assert len(asked) == 1


def test_a_wrapper_is_judged_under_its_variants_in_processes_of_their_own():
    with campaign_of(options(f"{VARIED}WrongWhenStrict", profile="full")) as campaign:
        assert campaign.variants_of("DPW-1") == ("default", "strict")
        assert list(environment_of(campaign).variables) == ["default"]
        found = {variant: judged(campaign, variant=variant) for variant in campaign.variants_of("DPW-1")}
        variables = environment_of(campaign).variables
        with pytest.raises(UnknownNameError, match="environment variant 'loose'"):
            campaign.runner("loose")

    assert {variant: cell.status for variant, cell in found.items()} == {
        "default": "passed",
        "strict": "failed",
    }
    assert found["strict"].violations[0].id.startswith("DPW-1:Wrapper:strict:")
    assert variables["strict"]["PIPECONFORM_TEST_STRICT"] == "1"
    assert "PIPECONFORM_TEST_STRICT" not in variables["default"]


def test_a_wrappers_variant_may_not_claim_otherwise():
    with (
        campaign_of(options(f"{VARIED}ClaimsWhenStrict")) as campaign,
        pytest.raises(BadAdapterError, match="claims other capabilities in its variant 'strict'"),
    ):
        campaign.runner("strict")


@pytest.mark.parametrize("name", ["default", "two words"])
def test_a_wrappers_variant_has_a_name_of_its_own(name):
    with pytest.raises(BadAdapterError, match="an environment variant cannot be called"):
        WrapperDescription(name="x", version="1", claims=WrapperClaims(), variants={name: {}})


def test_what_is_judged_is_kept_and_what_was_found_is_executed_first_in_the_next_run(tmp_path, make):
    with campaign_of(options(WRONG, keep_cases=tmp_path / "kept", profile="core")) as campaign:
        first = judged(campaign)
        implementation = implementation_of(campaign)
    cells, cases = read_judged(tmp_path / "kept")
    result = make.changed(make.result(first), implementation=implementation)
    (tmp_path / "result.json").write_bytes(msgspec.json.encode(result))

    assert [(one.requirement, one.schedule, len(one.digests)) for one in cells] == [
        ("DPW-1", "Wrapper", first.distinct_cases)
    ]
    assert all(isinstance(decode_any_case(data), WrapperCase) for data in cases.values())
    assert read_result(tmp_path / "result.json").implementation.kind == "wrapper"

    with campaign_of(options(WRONG, earlier=tmp_path / "result.json", seed=7)) as campaign:
        again = judged(campaign)
    assert again.violations[0].digest == first.violations[0].digest
    assert again.violations[0].shrink_executions == 0
    assert again.judgements == 2  # the earlier case, and the example


def test_cells_of_a_wrapper_are_grouped_by_requirement_and_weighed_by_their_replicas():
    with campaign_of(options(ranks=(1, 3), examples=None)) as campaign:
        found = weights(campaign)

    assert found["DPW-1"] == Weight(num_ranks=3, num_cells=1)
    assert found["DPW-24"] == Weight(num_ranks=2, num_cells=1)
    assert all(name.startswith("DPW-") for name in found)


def test_ranks_may_share_a_device_and_a_device_that_is_not_here_is_told():
    with campaign_of(options(device="cpu", backend="gloo", ranks_per_device=2)) as campaign:
        cell = judged(campaign)
        environment = environment_of(campaign)
    assert (cell.status, environment.device, environment.backend) == ("passed", "cpu", "gloo")

    with (
        pytest.raises(UsageError, match=r"--backend nccl needs --device cuda, not cpu"),
        campaign_of(options(backend="nccl")),
    ):
        pass
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="this machine has 0"), campaign_of(options(device="cuda")):
            pass


def test_modules_and_batches_are_put_on_the_ranks_device():
    """The meta device is one that every machine has; what a case has there stays there on any."""
    case = WrapperCase(module="shared")
    moved = placed(build(case, rank=0), "meta")
    apart = placed(build(WrapperCase(module="two_devices"), rank=0), "cpu")

    assert {tensor.device.type for tensor in moved.parameters()} == {"meta"}
    assert {tensor.device.type for tensor in apart.parameters()} == {"cpu", "meta"}
    assert batch_of(case, rank=0, step=0, index=0, forward=0).to("meta").device.type == "meta"
