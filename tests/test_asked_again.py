"""What fails and passes when it is run again has failed, and is recorded; what fails twice is not."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parents[1]
TESTS = """
import pytest
seen = []

@pytest.fixture(scope="module")
def shared():
    seen.append("fixture")
    return seen

def test_by_chance(shared):
    shared.append("called")
    print("what it printed")
    assert len(shared) > 2, "too early"

def test_always():
    assert False

def test_never(shared):
    pass
"""


def _run(tmp_path, *options):
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(
        "from pathlib import Path\n"
        "from tests.asked_again import AskedAgain\n"
        "def pytest_configure(config):\n"
        "    begins = not hasattr(config, 'workerinput')\n"
        "    config.pluginmanager.register(AskedAgain(Path('left/flaky.txt').resolve(), begins=begins))\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "."]
    return subprocess.run(
        command,
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(HERE), "PATH": ""},
    )


def test_only_what_passes_when_it_is_run_again_is_recorded_and_it_counts_as_failed(tmp_path):
    (tmp_path / "left").mkdir()
    (tmp_path / "left/flaky.txt").write_text("==== of an earlier run\n")

    run = _run(tmp_path)

    assert "2 failed, 1 passed" in run.stdout
    assert "1 failed and passed when run again" in run.stdout
    text = (tmp_path / "left/flaky.txt").read_text()
    assert [line.split()[1] for line in text.splitlines() if line.startswith("==== ")] == [
        "test_some.py::test_by_chance"
    ]
    assert "too early" in text
    assert "what it printed" in text


def test_where_nothing_fails_by_chance_no_file_is_left(tmp_path):
    (tmp_path / "left").mkdir()
    (tmp_path / "left/flaky.txt").write_text("==== of an earlier run\n")

    run = _run(tmp_path, "-k", "always or never")

    assert "1 failed, 1 passed" in run.stdout
    assert not (tmp_path / "left/flaky.txt").exists()
