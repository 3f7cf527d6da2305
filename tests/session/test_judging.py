"""Where ranks cannot be started any more, a run ends, and goes on when they can: it does not try every cell."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tenths

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


@tenths.long
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


@tenths.long
def test_a_cell_is_judged_once_more_without_the_processes_that_others_could_not_start_beside(tmp_path):
    """As where one process has broken a device's service: others are refused until it is gone."""
    (tmp_path / "mine.py").write_text(_MINE, encoding="utf-8")
    (tmp_path / "refuses.py").write_text(_REFUSES, encoding="utf-8")
    ranks = ["--ranks", "1-2", "--schedules", "GPipe", "--requirements", "FWD-1", "--profile", "smoke"]

    code, said = run(tmp_path, "--impl", "mine.py:Mine", *ranks, "--out", "out")

    assert code == 0, said
    assert (tmp_path / "refusing").read_text() == "refused"
    cells = json.loads((tmp_path / "out" / "result.json").read_text())["cells"]
    assert [cell["status"] for cell in cells] == ["passed"]


_MINE = """
import os
import subprocess
import sys
from pathlib import Path

from reference_impl.adapter import ReferenceAdapter


class Mine(ReferenceAdapter):
    def build(self, plan):
        if not Path("refusing").exists():
            subprocess.Popen([sys.executable, "refuses.py", str(os.getppid())])
            while not Path("refusing").exists():
                pass
        return super().build(plan)
"""
_REFUSES = """
import os
import signal
import sys
import time
from pathlib import Path

server = sys.argv[1]
parent = os.getppid()


def children():
    return {int(pid) for pid in Path(f"/proc/{server}/task/{server}/children").read_text().split()}


known = children()
Path("refusing").touch()
while os.getppid() == parent:
    for pid in children() - known:
        os.kill(pid, signal.SIGKILL)
        known.add(pid)
        Path("refusing").write_text("refused")
    time.sleep(0.01)
"""
