"""Judged cases are kept by their digests; several workers may keep the same."""

from pathlib import Path

import pytest

from pipeconform.campaign.kept import JudgedCases, KeptCases, read_judged
from pipeconform.case.case import decode_case
from pipeconform.errors import BadResultError
from tests.report.conftest import make

__all__ = ["make"]


def test_what_was_kept_is_read_by_cell_and_by_digest(make, tmp_path):
    one, two = make.case(p=1), make.case(p=2)
    kept = KeptCases(tmp_path)
    for requirement, cases in (("TRN-1", (one,)), ("FWD-1", (one, two))):
        digests = tuple(case.digest for case in cases)
        kept.keep(
            JudgedCases(requirement=requirement, schedule="GPipe", variant="default", digests=digests), cases
        )
    judged, cases = read_judged(tmp_path)

    assert [(cell.requirement, cell.digests) for cell in judged] == [
        ("FWD-1", (one.digest, two.digest)),
        ("TRN-1", (one.digest,)),
    ]
    assert {digest: decode_case(data) for digest, data in cases.items()} == {
        one.digest: one,
        two.digest: two,
    }


def test_a_folder_that_cannot_be_written_is_named(make):
    case = make.case()
    judged = JudgedCases(requirement="FWD-1", schedule="GPipe", variant="default", digests=(case.digest,))

    with pytest.raises(BadResultError, match="cannot keep a case in /proc/nowhere"):
        KeptCases(Path("/proc/nowhere")).keep(judged, [case])


def test_an_empty_folder_holds_nothing(tmp_path):
    assert read_judged(tmp_path) == ((), {})
