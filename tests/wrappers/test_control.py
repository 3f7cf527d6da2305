"""What remains of a wrapper's case without all that its requirement is about."""

import pytest

from pipeconform.case.wrapper_case import Pass, Step, WrapperCase
from pipeconform.wrapper import WrapOptions
from pipeconform.wrappers.control import plain_control

PLAIN = (WrapperCase(steps=(Step(),)), WrapperCase(ranks=3), WrapperCase(ranks=1))


@pytest.mark.parametrize(
    ("case", "control"),
    [
        (WrapperCase(module="towers", options=WrapOptions(find_unused=True)), WrapperCase()),
        (
            WrapperCase(steps=(Step(passes=(Pass(sync="no"), Pass())),), seed=7),
            WrapperCase(steps=(Step(),), seed=7),
        ),
        (WrapperCase(ranks=4, special="pickled"), WrapperCase(ranks=3)),
        (WrapperCase(ranks=3), None),
    ],
)
def test_plain_training_on_as_many_replicas_as_there_are_plain_cases(case, control):
    assert plain_control(case, PLAIN) == control


def test_without_plain_cases_there_is_no_control():
    assert plain_control(WrapperCase(module="towers"), ()) is None
