"""Every wrong lowering is told by the rule it breaks, with the actions by name; the right one by none."""

import re

import pytest

from pipeconform.schedule import verify
from tests.schedule.lowering_faults import LOWERING_FAULTS, LoweringFault


@pytest.mark.parametrize("fault", LOWERING_FAULTS, ids=lambda fault: fault.name)
def test_a_wrong_lowering_is_told_by_the_rule_it_breaks(fault: LoweringFault) -> None:
    right, wrong = fault.tables()

    assert verify(right, communication=True) == ()
    found = [
        one.message
        for one in verify(wrong, communication=True)
        if one.rule is fault.rule and fault.delivery in (None, one.delivery)
    ]
    assert any(re.search(fault.tells, message) for message in found), [
        str(one) for one in verify(wrong, communication=True)
    ]
