"""What a canary of a package must have shown."""

import msgspec
import pytest

from pipeconform.certificate.noticed import canary_doubts


@pytest.fixture
def said(contents):
    """The doubts about a package in which every canary of COM-1 showed what is given."""

    def doubts(fault, *shown, device="cpu"):
        of_level = contents.canaries[0]
        made = []
        for name in ("leftover-send", "leftover-receive", "longer-receive", "dtype-reinterpreted"):
            one = msgspec.structs.replace(of_level, fault=name, requirement="COM-1", schedule="1F1B")
            made.append(msgspec.structs.replace(one, shown=shown if name == fault else ("failed: traffic",)))
        environment = msgspec.structs.replace(contents.result.environment, device=device)
        result = msgspec.structs.replace(contents.result, environment=environment)
        asked = msgspec.structs.replace(contents, result=result, canaries=tuple(made))
        return [text for text in map(str, canary_doubts(["COM-1"], asked)) if fault in text]

    return doubts


@pytest.mark.parametrize("fault", ["leftover-send", "longer-receive", "dtype-reinterpreted"])
def test_the_expected_status_is_accepted(said, fault):
    assert said(fault, "error: raised ValueError", "failed: traffic") == []


def test_a_hang_is_accepted_of_a_fault_that_hangs_on_devices_and_only_there(said):
    assert said("leftover-receive", "hung: hang", device="cuda") == []
    (doubt,) = said("leftover-receive", "hung: hang")
    assert "leftover-receive was detected by 'failed', but that is not among what it showed" in doubt
    (doubt,) = said("dtype-reinterpreted", "hung: hang", device="cuda")
    assert "dtype-reinterpreted was detected by 'failed', but that is not among what it showed" in doubt


@pytest.mark.parametrize("shown", [(), ("error: raised ValueError",), ("crashed: SIGABRT",)])
def test_anything_else_is_doubted(said, shown):
    (doubt,) = said("leftover-receive", *shown)
    assert "is not among what it showed" in doubt
