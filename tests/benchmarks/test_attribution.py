"""What a result says of a fault, and the page that is made of it."""

import pytest
from pipeconform.reference_impl.faults import Fault

from benchmarks import lines
from benchmarks.attribution.page import page
from benchmarks.attribution.verdicts import Accused, Verdict

DAY = "2026-01-02T03:04:05+00:00"


def fault(name, **others):
    return Fault(name=name, summary="Wrong.", requirement="FWD-2", reference=f"module:{name}", **others)


def verdict(*causes):
    return Verdict(judged=DAY, seconds=2.0, causes=tuple(Accused(requirements=one) for one in causes))


@pytest.mark.parametrize(
    ("also", "causes", "expected"),
    [
        ((), [("FWD-2",), ("TRN-1",)], "right"),
        ((), [("FWD-1", "FWD-2")], "right"),
        ((), [("FWD-1",), ("FWD-2",)], "other"),
        (("FWD-1",), [("FWD-1",)], "right"),
        ((), [], "unseen"),
    ],
)
def test_the_first_cause_decides(also, causes, expected):
    assert verdict(*causes).of(fault("swapped", also=also)) == expected


def test_what_is_kept_is_read_again_and_shown(tmp_path):
    labels = {name: fault(name) for name in ("swapped", "dropped", "hidden", "left")}
    verdicts = {
        "swapped": verdict(("FWD-2",)),
        "dropped": verdict(("TRN-1",), ("FWD-2",)),
        "hidden": verdict(),
    }

    lines.keep(verdicts, tmp_path / "kept.json")
    kept = lines.kept(tmp_path / "kept.json", Verdict)
    text = page(labels, kept)

    assert kept == verdicts
    assert "3 of the 4 faults" in text
    assert "| first cause accuses a requirement of the fault's label | 1 of 2 (50.0%) |" in text
    assert "not one that it breaks as plainly | 1 |" in text
    assert "| dropped | FWD-2 | 1F1B | **TRN-1** | 2 | TRN-1, FWD-2 | 0 |" in text
    assert "| hidden | FWD-2 | 1F1B | not seen at smoke | 0 |  | 0 |" in text


def test_nothing_is_kept_where_there_is_no_file(tmp_path):
    assert lines.kept(tmp_path / "kept.json", Verdict) == {}
