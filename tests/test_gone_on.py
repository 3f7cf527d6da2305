"""A long run goes on where it was stopped."""

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parents[1]
TESTS = """
import os, signal, pytest

def test_right():
    pass

@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("name", ["a", "b@c"])
def test_named(name):
    pass

def test_wrong():
    assert "mended" in os.environ

def test_left_out():
    pytest.skip("not here")
"""


def _run(tmp_path, *options, **environment):
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(
        "from pathlib import Path\n"
        "from tests.gone_on import GoneOn\n"
        "def pytest_configure(config):\n"
        "    keeps = not hasattr(config, 'workerinput')\n"
        "    config.pluginmanager.register(GoneOn(Path('left/full.jsonl').resolve(), keeps=keeps))\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "."]
    return subprocess.run(
        command,
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(HERE), "PATH": "", **environment},
    )


def _kept(tmp_path):
    lines = map(json.loads, (tmp_path / "left/full.jsonl").read_text().splitlines())
    return [(one["test"].removeprefix("test_some.py::"), one["outcome"]) for one in lines]


def test_what_passed_is_not_run_again_and_what_failed_is(tmp_path):
    first = _run(tmp_path)
    assert "1 failed, 3 passed, 1 skipped" in first.stdout
    assert "1 failed, 3 passed, 1 skipped (" in first.stdout.partition("all parts so far")[2]

    second = _run(tmp_path, mended="yes")

    assert "1 passed, 4 deselected" in second.stdout
    assert "4 passed, 1 skipped (" in second.stdout.partition("all parts so far")[2]
    assert _kept(tmp_path)[-1] == ("test_wrong", "passed")


def test_workers_go_on_too_with_the_names_that_one_process_gives(tmp_path):
    first = _run(tmp_path, "-n", "2", "--dist", "loadgroup")
    assert "1 failed, 3 passed, 1 skipped" in first.stdout
    assert sorted(_kept(tmp_path)) == [
        ("test_left_out", "skipped"),
        ("test_named[a]", "passed"),
        ("test_named[b@c]", "passed"),
        ("test_right", "passed"),
        ("test_wrong", "failed"),
    ]

    second = _run(tmp_path)

    assert "1 failed, 4 deselected" in second.stdout


def test_a_line_that_an_interruption_cut_is_run_again(tmp_path):
    _run(tmp_path)
    kept = (tmp_path / "left/full.jsonl").read_text()
    (tmp_path / "left/full.jsonl").write_text(kept.splitlines()[0] + "\n" + kept.splitlines()[1][:20])

    assert "1 failed, 2 passed, 1 skipped, 1 deselected" in _run(tmp_path).stdout
