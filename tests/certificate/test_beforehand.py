"""What the claims alone refuse is refused before anything is run, for the reasons that a run would give."""

import dataclasses

import msgspec
import pytest

from pipeconform.campaign.targets import target_claiming, target_of
from pipeconform.certificate.beforehand import num_to_claim, reasons_in_claims, unclaimed
from pipeconform.certificate.decision import reasons_against
from pipeconform.claims import Feature
from pipeconform.execute.implementation import describe
from pipeconform.judge.claiming import PLAINEST
from pipeconform.spec import certification_level, certification_levels, mandatory, profile
from pipeconform.wrapper import WrapperClaims, WrapperFeature
from tests.case.examples import EVERYTHING
from tests.certificate.conftest import as_read

FORWARD, TRAINING = certification_level("forward"), certification_level("training")
PIPELINES = [level for level in certification_levels() if level.kind == "pipeline"]
SILENT = dataclasses.replace(EVERYTHING, features=EVERYTHING.features - {Feature.OUTPUTS})


def target(claims):
    return target_claiming(claims, name="mine", profile=profile("certify"), ranks=(1, 4), seed=0)


def judged(make, level, claims):
    """A result in which all that is claimed is met."""
    left_out = unclaimed(level, target(claims))
    cells = [
        make.cell(row.id, claim.name, status="not_claimed" if row.id in left_out else "passed")
        for row in mandatory(level)
        for claim in claims.schedules
    ]
    result = make.result(*cells)
    one = msgspec.structs.replace(result.implementation, capabilities=as_read(claims))
    return msgspec.structs.replace(result, implementation=one)


def test_the_plainest_claims_are_too_few_for_forward_and_the_number_is_said():
    left_out = unclaimed(FORWARD, target(PLAINEST))
    most = int(FORWARD.not_claimed * len(mandatory(FORWARD)))

    (first, *_) = reasons_in_claims(FORWARD, target(PLAINEST))
    assert first.startswith(f"{len(left_out)} of {len(mandatory(FORWARD))} requirements are not claimed")
    assert num_to_claim(FORWARD, left_out) == len(left_out) - most > 0


@pytest.mark.parametrize("level", PIPELINES, ids=lambda level: level.name)
def test_nothing_is_refused_to_what_claims_enough(level):
    reference = target_of(describe("reference"), profile=profile("certify"), ranks=(1, 4))

    assert reasons_in_claims(level, reference) == ()


@pytest.mark.parametrize("claims", [PLAINEST, SILENT], ids=["few", "silent"])
def test_a_run_would_refuse_for_the_same_reasons(make, claims):
    beforehand = reasons_in_claims(FORWARD, target(claims))

    assert beforehand
    assert set(beforehand) <= set(reasons_against(FORWARD, judged(make, FORWARD, claims)))


def test_a_requirement_that_cannot_be_left_out_has_to_be_claimed_however_many_others_are():
    assert num_to_claim(TRAINING, ()) == 0
    assert num_to_claim(TRAINING, ("TRN-1",)) == 1


def test_a_wrapper_is_refused_by_its_features():
    level = next(one for one in certification_levels() if one.kind == "wrapper")

    def reasons(*features):
        return reasons_in_claims(level, target(WrapperClaims(features=frozenset(features))))

    assert reasons(*WrapperFeature) == ()
    assert "requirements are not claimed" in reasons()[-1]
