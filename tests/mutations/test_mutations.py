"""Damaged and hostile files of every kind are read or refused: no traceback, no hang, no memory without end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutations import drive
from tests.mutations.drive import KINDS

ROOT = Path(__file__).parents[2]
FEW = {"result": 200, "package": 100, "case": 500, "expectations": 500, "table": 300}
MOST_MEMORY = 500  # MiB


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_of_mutations_is_read_or_refused(kind, tmp_path):
    found = drive.drive(kind, FEW[kind], folder=tmp_path)

    assert found.broken == []
    assert found.read > 0, "the mutations are so wild that nothing behind the reader was tried"
    assert found.read + found.refused.total() == FEW[kind]


def test_a_use_that_breaks_is_found(tmp_path, monkeypatch):
    """The driver itself: it would tell of an error that is not ours."""

    def broken(_folder):
        return [("table.csv", b"0F0")], lambda _path: {}["missing"]

    monkeypatch.setitem(drive.KINDS, "broken", broken)
    assert "KeyError: 'missing'" in drive.drive("broken", 1, folder=tmp_path).broken[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_ten_thousand_mutations_are_read_or_refused(kind):
    done = subprocess.run(
        [sys.executable, drive.__file__, kind, "10000", "1000"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert int(re.search(r"; (\d+) MiB", done.stdout)[1]) < MOST_MEMORY
