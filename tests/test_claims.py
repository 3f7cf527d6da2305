"""Claims under one schedule."""

import dataclasses

import pytest

from pipeconform.case.draw.claimed import is_claimed
from pipeconform.case.focus import Focus
from pipeconform.claims import Capabilities, Feature, ScheduleClaim
from pipeconform.errors import UnknownNameError
from pipeconform.judge.registry import JUDGEMENTS

WHOLE = ScheduleClaim(name="whole")
PARTLY = ScheduleClaim(name="partly", lacks=frozenset({Feature.OUTPUTS, Feature.BATCH_DIM}))
CLAIMED = Capabilities(
    schedules=(WHOLE, PARTLY), features=frozenset({Feature.OUTPUTS, Feature.BATCH_DIM, Feature.EVAL})
)


def test_a_schedule_lacks_only_what_it_names():
    assert CLAIMED.under(PARTLY).features == {Feature.EVAL}
    assert CLAIMED.under(WHOLE) is CLAIMED
    assert CLAIMED.under(None) is CLAIMED


def test_what_a_schedule_lacks_is_not_claimed_there_and_is_claimed_elsewhere():
    assert is_claimed(Focus.BATCH_DIM, WHOLE, CLAIMED)
    assert not is_claimed(Focus.BATCH_DIM, PARTLY, CLAIMED)
    assert JUDGEMENTS["FWD-16"].foci(WHOLE, CLAIMED) == (Focus.BATCH_DIM,)
    assert JUDGEMENTS["FWD-16"].foci(PARTLY, CLAIMED) == ()
    assert JUDGEMENTS["FWD-3"].foci(WHOLE, CLAIMED)
    assert JUDGEMENTS["FWD-3"].foci(PARTLY, CLAIMED) == ()


def test_a_feature_that_does_not_exist_cannot_be_lacking():
    with pytest.raises(UnknownNameError, match=r"batch_dims.*nearest: batch_dim"):
        dataclasses.replace(WHOLE, lacks=frozenset({"batch_dims"}))


def test_an_engine_whose_parameters_are_stepped_takes_sgd():
    """Cases about clipping, copies and replicas have no other optimizer."""
    with pytest.raises(ValueError, match=r"optimizers is \('adam',\), without 'sgd'.*leave that feature out"):
        Capabilities(schedules=(), features=frozenset({Feature.OPTIMIZER}), optimizers=("adam",))

    assert Capabilities(schedules=(), optimizers=("adam",)).optimizers == ("adam",)
