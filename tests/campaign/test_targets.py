"""Which target a description or claims give."""

import pytest

from pipeconform.adapter import Description
from pipeconform.campaign.pipeline import PipelineTarget
from pipeconform.campaign.targets import target_claiming, target_of
from pipeconform.campaign.wrapper import WrapperTarget
from pipeconform.spec import profile
from pipeconform.wrapper import WrapperClaims, WrapperDescription
from tests.case.examples import EVERYTHING

PIPELINE = Description(name="a pipeline", version="1", capabilities=EVERYTHING)
WRAPPER = WrapperDescription(name="a wrapper", version="2", claims=WrapperClaims())


@pytest.mark.parametrize(
    ("description", "kind", "claims"),
    [(PIPELINE, PipelineTarget, EVERYTHING), (WRAPPER, WrapperTarget, WrapperClaims())],
    ids=["pipeline", "wrapper"],
)
def test_claims_alone_give_the_target_that_a_description_gives_but_for_its_version(description, kind, claims):
    how = {"profile": profile("smoke"), "ranks": (2, 3), "seed": 5}
    described = target_of(description, **how)
    claiming = target_claiming(claims, name=description.name, **how)

    for found in (described, claiming):
        assert type(found) is kind
        assert (found.name, found.claims, found.seed, found.max_ranks) == (description.name, claims, 5, 3)
    assert (described.version, claiming.version) == (description.version, "")


def test_a_pipeline_s_schedules_and_a_wrapper_s_examples_are_chosen():
    how = {"profile": profile("smoke"), "ranks": (1, 4)}

    assert target_of(PIPELINE, schedules=("v",), **how).schedules == ("V",)
    assert target_of(WRAPPER, examples=3, **how).examples == 3
