"""Data-parallel wrappers on the device, with everything that NCCL has."""

from __future__ import annotations

import json

import pytest

from tests import tenths

pytestmark = pytest.mark.xdist_group("device")


@pytest.fixture
def judged(typed, device, monkeypatch, tmp_path):
    """Judge a wrapper on the device or on the CPU; return the status of each requirement."""
    monkeypatch.setenv("TESTDEV_SWITCHES", "nccl")

    def judge(implementation, *, on, requirements):
        where = ("--device", "testdev", "--backend", "testccl") if on == "testdev" else ("--device", "cpu")
        out = tmp_path / on
        asked = ("--requirements", requirements, "--profile", "smoke", "--out", out)
        code, shown, said = typed("run", "--impl", implementation, *where, *asked)
        assert code in (0, 1), shown + said
        print(shown)  # for the report of a failure
        cells = json.loads((out / "result.json").read_text())["cells"]
        return {cell["requirement"]: cell["status"] for cell in cells}

    return judge


@tenths.long
def test_the_reference_meets_on_the_device_what_wrappers_promise(judged):
    """DPW-5 has a shared parameter, of which two were made on devices; DPW-38 named a device that one rank has."""
    asked = ("DPW-1", "DPW-5", "DPW-38", "DPW-43")
    found = judged("reference-wrapper", on="testdev", requirements=",".join(asked))
    assert found == dict.fromkeys(asked, "passed")


@pytest.mark.slow
def test_torchs_wrapper_meets_and_violates_on_the_device_what_it_does_on_the_cpu(judged):
    """DPW-7 is finding W3."""
    asked = "DPW-1,DPW-2,DPW-5,DPW-7"
    on_device = judged("torch-ddp", on="testdev", requirements=asked)
    assert [one for one, status in on_device.items() if status == "passed"] == ["DPW-1", "DPW-2", "DPW-5"]
    assert on_device == judged("torch-ddp", on="cpu", requirements=asked)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["reference-wrapper", "torch-ddp"])
def test_every_verdict_on_the_device_is_that_on_the_cpu(judged, implementation):
    on_device = judged(implementation, on="testdev", requirements="DPW")
    on_cpu = judged(implementation, on="cpu", requirements="DPW")
    assert {one: (on_cpu[one], on_device[one]) for one in on_cpu if on_cpu[one] != on_device[one]} == {
        "DPW-25": ("passed", "error"),  # the test device has no convolution
        "DPW-26": ("passed", "error"),  # and no sparse tensors
    }
