"""``pipeconform wrappers``: a run, its result file, and a replay."""

from __future__ import annotations

from pipeconform.replication.result import read_wrapper_result

FAULT = "pipeconform.reference_impl.faults.registry_wrappers:Summed"


def test_a_wrong_wrapper_is_shown_and_replayed(typed, tmp_path) -> None:
    code, out, _ = typed(
        "wrappers", "run", "--impl", FAULT, "--requirements", "DPW-1,DPW-3", "--out", "found"
    )
    result = read_wrapper_result(tmp_path / "found" / "wrappers.json")
    broken, met = result.cells

    assert code == 1
    assert "FAIL DPW-1" in out
    assert "ok   DPW-3" in out
    assert (broken.requirement, broken.status, met.status) == ("DPW-1", "failed", "passed")
    assert set(result.rules) == {"DPW-1", "DPW-3"}
    assert result.implementation.source == "wrapper_adapter.py"
    violation = broken.violations[0]
    assert violation.confirmed

    code, out, _ = typed(
        "wrappers", "replay", violation.id, "--impl", "reference-wrapper", "--result", "found/wrappers.json"
    )
    assert (code, out.splitlines()[-1]) == (0, "FIXED: DPW-1 is met")


def test_a_pipeline_is_no_wrapper(typed) -> None:
    code, _, err = typed("wrappers", "run", "--impl", "reference")

    assert code == 2
    assert "lacks wrap()" in err


def test_the_chapter_is_listed(typed) -> None:
    code, out, _ = typed("wrappers", "list")

    assert code == 0
    assert len(out.splitlines()) == 26
    assert "DPW-19 MUST   Uneven inputs" in out


def test_run_judges_a_wrapper_by_its_name_and_refuses_what_says_nothing_about_one(typed, tmp_path) -> None:
    code, out, _ = typed("run", "--impl", "reference-wrapper", "--requirements", "DPW-3", "--out", "found")

    assert code == 0
    assert "1 met, 0 not met, 0 not claimed" in out
    assert (tmp_path / "found" / "wrappers.json").is_file()

    code, _, err = typed("run", "--impl", "reference-wrapper", "--schedules", "GPipe")
    assert code == 2
    assert "not --schedules" in err
