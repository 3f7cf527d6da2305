"""A result that does not fit on the disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeconform.report.result import as_json, read_result
from tests.small_disk import on_a_disk_of

RESCUE = """
import sys
from pathlib import Path

from pipeconform.report.rescue import rescued
from pipeconform.report.result import read_result

print(*rescued(read_result(Path(sys.argv[1])), Path(sys.argv[2]) / "result.json"), sep="; ")
"""


@pytest.mark.parametrize(("kilobytes", "fits"), [(32, True), (4, False)])
def test_what_fits_is_kept_there_and_otherwise_all_of_it_elsewhere(make, tmp_path, kilobytes, fits):
    explained = make.violation("FWD-1", "GPipe", timeline=(("0F0",) * 20_000,), message="long\n" * 2_000)
    others = [make.cell("TRN-1", f"schedule {number}") for number in range(20)]
    result = make.result(make.cell("FWD-1", "GPipe", explained), *others)
    (tmp_path / "whole.json").write_bytes(as_json(result))
    disk, temporary = tmp_path / "disk", tmp_path / "temporary"
    disk.mkdir()
    temporary.mkdir()
    done = subprocess.run(
        [*on_a_disk_of(kilobytes, disk), sys.executable, "-c", RESCUE, tmp_path / "whole.json", disk],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )

    where, text = done.stdout.split("; ")
    if not fits:
        assert read_result(Path(where)) == result
        assert where in text
        return
    assert where == str(disk / "result.json")
    assert "without messages" in text
    kept = read_result(tmp_path / "disk.left" / "result.json")
    assert [cell.status for cell in kept.cells] == ["failed", *["passed"] * 20]
    assert kept.cells[0].violations[0].case == explained.case
    assert list(temporary.iterdir()) == []
