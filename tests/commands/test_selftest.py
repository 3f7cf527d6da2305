"""The self-test tries faults on real processes, and fails where one is not detected."""

import dataclasses

from pipeconform.reference_impl import faults

from pipeconform.campaign.trial import faults as all_faults
from pipeconform.campaign.trial import wrapper_faults
from pipeconform.certificate.canaries import one_each


def test_every_fault_of_a_requirement_is_detected_and_counted(typed):
    code, out, err = typed("selftest", "--requirements", "TRN-7", "--all")
    tried = [fault for fault in all_faults().values() if fault.requirement == "TRN-7"]

    assert (code, err) == (0, "")
    assert f"trying {len(tried)} faults" in out
    assert out.splitlines()[-1] == f"{len(tried)} of {len(tried)} faults detected"
    assert any(row.split()[:3] == ["TRN", "1", str(len(tried))] for row in out.splitlines())


def test_a_fault_that_shows_otherwise_than_it_must_is_told_and_the_exit_code_says_so(typed, monkeypatch):
    fault = faults.FAULTS["inputs-forgotten"]
    changed = {
        "of-another-status": dataclasses.replace(fault, name="of-another-status", expected_status="hung"),
        "of-other-words": dataclasses.replace(fault, name="of-other-words", tells="words that nobody says"),
    }
    monkeypatch.setattr(faults, "FAULTS", changed)
    code, out, _ = typed("selftest", "--requirements", "TRN-7", "--all")

    assert code == 1
    assert out.splitlines()[-1] == "0 of 2 faults detected"
    assert (
        "NOT DETECTED  of-another-status, which breaks TRN-7 under 1F1B: expected hung, seen failed: " in out
    )
    assert (
        "NOT DETECTED  of-other-words, which breaks TRN-7 under 1F1B: expected failed, seen failed: " in out
    )


def test_the_selection_has_one_fault_for_each_requirement_and_status():
    everything = tuple(all_faults().values())
    chosen = one_each(everything)
    kinds = [(fault.requirement, fault.expected_status) for fault in chosen]

    assert len(set(kinds)) == len(kinds)
    assert set(kinds) == {(fault.requirement, fault.expected_status) for fault in everything}
    assert len(chosen) < len(everything)


def test_faulty_wrappers_are_tried_where_their_requirements_are_named(typed):
    code, out, err = typed("selftest", "--requirements", "dpw-1,DPW-5", "--all")
    tried = [fault for fault in wrapper_faults().values() if fault.requirement in ("DPW-1", "DPW-5")]

    assert (code, err) == (0, "")
    assert f"trying {len(tried)} faults" in out
    assert out.splitlines()[-1] == f"{len(tried)} of {len(tried)} faults detected"
    assert any(row.split()[:3] == ["DPW", "2", str(len(tried))] for row in out.splitlines())


def test_wrappers_are_tried_on_the_devices_that_are_asked_for(typed):
    code, _, err = typed("selftest", "--requirements", "DPW", "--device", "abacus")

    assert code == 2
    assert "--device abacus: torch does not support it on this machine" in err
