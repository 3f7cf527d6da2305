"""Where ranks cannot be started any more, a run ends, and goes on when they can: it does not try every cell."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUARD = 300  # seconds
NO_INTERFACE = {"GLOO_SOCKET_IFNAME": "nothere0"}
ASKED = ["--impl", "reference", "--profile", "smoke", "--ranks", "2", "--schedules", "GPipe"]


def run(folder, *arguments, **variables):
    done = subprocess.run(
        [sys.executable, "-m", "pipeconform", "run", *arguments],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=GUARD,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("workers", [[], pytest.param(["-n", "2"], marks=pytest.mark.slow)])
def test_a_run_without_ranks_ends_after_three_cells_and_can_be_resumed(tmp_path, workers):
    asked = [*ASKED, "--requirements", "FWD-1,FWD-9,FWD-12,TRN-1,TRN-3", "--out", "out", *workers]
    code, said = run(tmp_path, *asked, **NO_INTERFACE)
    assert code == 3, said
    assert "ranks could not be started for 3 cells in a row, so no others were tried" in said
    assert "Unable to find address for: nothere0" in said
    assert "\ngo on with: pipeconform run --resume out\n" in said

    code, said = run(tmp_path, "--resume", "out")
    assert code == 0, said
    cells = json.loads((tmp_path / "out" / "result.json").read_text())["cells"]
    assert [cell["status"] for cell in cells] == ["passed"] * 5
