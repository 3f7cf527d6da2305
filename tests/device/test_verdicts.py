"""What is judged on the device, with everything that NCCL has, gets the verdicts of the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import tenths
from tests.device import building

pytestmark = pytest.mark.xdist_group("device")

FEW = "FWD-1,TRN-1,COM-1,COM-2,COM-3,COM-4,LIF-1,LIF-3"


@pytest.fixture
def judged(typed, device, monkeypatch, tmp_path):
    """Judge on the device or on the CPU; return the status of each cell."""
    monkeypatch.setenv("TESTDEV_SWITCHES", "nccl")

    def judge(implementation, *, on, requirements=FEW, schedules="GPipe"):
        where = ("--device", "testdev", "--backend", "testccl") if on == "testdev" else ("--device", "cpu")
        asked = ("--requirements", requirements, "--schedules", schedules, "--profile", "smoke")
        out = tmp_path / on
        code, shown, said = typed("run", "--impl", implementation, *where, *asked, "--out", out)
        assert code in (0, 1), shown + said
        cells = json.loads((out / "result.json").read_text())["cells"]
        return {(cell["requirement"], cell["schedule"]): cell["status"] for cell in cells}

    return judge


def test_the_reference_meets_on_the_device_what_it_meets_on_the_cpu(judged):
    on_device = judged("reference", on="testdev")
    assert set(on_device.values()) == {"passed"}
    assert on_device.keys() == {(one, "GPipe") for one in FEW.split(",")}


@pytest.mark.slow
def test_torch_has_the_same_verdicts_on_both(judged):
    assert judged("torch", on="testdev") == judged("torch", on="cpu")


@pytest.mark.slow
def test_the_reference_tells_all_ranks_of_a_failure_before_it_ends(judged):
    assert judged("reference", on="testdev", requirements="ERR-3,ERR-4,ERR-11", schedules="1F1B") == {
        ("ERR-3", "1F1B"): "passed",
        ("ERR-4", "1F1B"): "passed",
        ("ERR-11", "1F1B"): "passed",
    }


@pytest.mark.slow
def test_gradients_of_tied_weights_cross_in_an_order_that_one_communicator_can_run(judged):
    assert judged("reference", on="testdev", requirements="DPC-5", schedules="1F1B") == {
        ("DPC-5", "1F1B"): "passed"
    }


PLANTED = Path(__file__).parent / "planted.py"


@tenths.long
@pytest.mark.parametrize(
    ("fault", "requirement"),
    [
        ("a sum on the CPU", "LIF-3"),
        ("batches are not followed", "COM-4"),
        pytest.param("what was received is copied on another stream", "COM-4", marks=pytest.mark.slow),
    ],
)
def test_a_planted_fault_shows_on_the_device_only(judged, monkeypatch, fault, requirement):
    monkeypatch.setenv("PLANTED", fault)
    asked = {"requirements": requirement}
    assert judged(f"{PLANTED}:Planted", on="cpu", **asked) == {(requirement, "GPipe"): "passed"}
    assert judged(f"{PLANTED}:Planted", on="testdev", **asked) != {(requirement, "GPipe"): "passed"}


@pytest.mark.slow
def test_a_device_without_float64_is_judged_in_smaller_dtypes(judged, monkeypatch):
    """Bounds are computed on the CPU there, and no mistake needs a dtype that the device does not have."""
    monkeypatch.setenv("TESTDEV_SWITCHES", "nccl,no-float64")
    asked = "FWD-1,FWD-6,TRN-1,TRN-17,LIF-5,ERR-2"
    narrow = f"{Path(__file__).with_name('narrow.py')}:Narrow"
    found = judged(narrow, on="testdev", requirements=asked)
    assert found == {(one, "GPipe"): "passed" for one in asked.split(",")}


@pytest.mark.slow
def test_ties_and_hooks_are_judged_on_the_device(typed, device, monkeypatch):
    """`Module.to` loses them there, and what neither the engine nor the oracle has is not compared."""
    monkeypatch.setenv("TESTDEV_SWITCHES", "nccl")
    asked = ("selftest", "--all", "--requirements", "FWD-17,FWD-27,TRN-8,TRN-17")
    code, shown, said = typed(*asked, "--device", "testdev", "--backend", "testccl")
    assert code == 0, shown + said
    assert "NOT DETECTED" not in shown


def test_the_package_of_the_device_is_what_the_page_on_accelerators_shows():
    entry = building.VENDOR / "testdev-1.0.dist-info" / "entry_points.txt"
    page = Path(__file__).parents[2] / "docs" / "accelerators.md"
    assert entry.read_text().strip() in page.read_text()


@pytest.mark.slow
def test_an_engine_that_does_not_wait_for_its_batches_is_found_where_it_has_batches(judged):
    """Under GPipe torch gives the backend sends or receives alone, which it issues one by one: there are no batches."""
    engine = Path(__file__).with_name("unwaited.py")
    for schedule, status in (("GPipe", "passed"), ("1F1B", "failed")):
        asked = {"requirements": "COM-4", "schedules": schedule}
        assert judged(f"{engine}:Unwaited", on="testdev", **asked) == {("COM-4", schedule): status}
