"""A mistake of a wrapper's adapter is no violation of the wrapper."""

from pathlib import Path

import pytest

from pipeconform.campaign.again import judge_again
from pipeconform.campaign.describing import describe, runner_of
from pipeconform.case.wrapper_case import Pass, Step, WrapperCase
from pipeconform.errors import ContractError
from pipeconform.execute.implementation import resolve
from pipeconform.spec.wrappers import any_requirement
from pipeconform.wrapper import WrapOptions

FILE = Path(__file__).with_name("mistaken_wrappers.py")


def judged(pools, reference, requirement, case):
    full = resolve(reference)
    one = runner_of(describe(pools, full), implementation=full, pools=pools)
    return judge_again(case, (any_requirement(requirement),), one)[requirement]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "Misspells",
            r"has no attribute 'al'\n.*mistaken_wrappers.py, line \d+, in wrap(.*\n)*.*fix wrap\(\)",
        ),
        ("TakesOne", r"TakesOne\.wrap\(module\) is called as wrap\(module, options\)"),
    ],
)
def test_a_mistake_of_the_adapter_is_no_violation(pools, name, expected):
    with pytest.raises(ContractError, match=expected):
        judged(pools, f"{FILE}:{name}", "DPW-1", WrapperCase(steps=(Step(),)))


def test_what_a_wrapper_raises_is_shown_with_its_lines(pools):
    case = WrapperCase(
        options=WrapOptions(static_graph=True), steps=(Step(passes=(Pass(sync="no"), Pass())),)
    )
    (found, *_) = judged(pools, "torch-ddp", "DPW-7", case)

    assert found.status == "error"
    assert "torch/autograd/graph.py, line " in found.finding.message
