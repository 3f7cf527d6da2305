"""Environment variants: their processes start when they are asked for, and describe themselves there."""

from pathlib import Path

import pytest

from pipeconform.adapter import Description, MistakeKind
from pipeconform.campaign.options import Options
from pipeconform.campaign.setup import campaign_of
from pipeconform.campaign.telling import environment_of
from pipeconform.claims import Capabilities, ScheduleClaim
from pipeconform.errors import BadAdapterError

ENGINES = f"{Path(__file__).with_name('varied_engines.py')}:"


def test_a_variant_starts_when_it_is_asked_for_and_says_itself_what_it_promises():
    with campaign_of(Options(implementation=f"{ENGINES}PromisesWhenStrict", profile="smoke")) as campaign:
        runners = campaign.runners
        assert list(runners) == ["default", "strict"]
        assert list(environment_of(campaign).variables) == ["default"]

        promised = [
            runners[name].executor.description.errors.promised(MistakeKind.EXCEPTION) for name in runners
        ]
        variables = environment_of(campaign).variables

    assert promised == [(), ("StageError",)]
    assert variables["strict"]["PIPECONFORM_TEST_STRICT"] == "1"
    assert "PIPECONFORM_TEST_STRICT" not in variables["default"]


def test_a_variant_may_not_claim_otherwise():
    with (
        campaign_of(Options(implementation=f"{ENGINES}ClaimsWhenStrict", profile="smoke")) as campaign,
        pytest.raises(BadAdapterError, match="claims other capabilities in its variant 'strict'"),
    ):
        campaign.runners["strict"]


@pytest.mark.parametrize("name", ["default", "", "two words", "a:b"])
def test_a_variant_has_a_name_of_its_own(name):
    claims = Capabilities(schedules=(ScheduleClaim(name="GPipe"),))
    with pytest.raises(BadAdapterError, match="an environment variant cannot be called"):
        Description(name="x", version="1", capabilities=claims, variants={name: {}})
