"""What tests share is made once, however many workers there are."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parents[1]
TESTS = """
import os, pathlib, pytest

@pytest.fixture(scope="module")
def shared():
    with pathlib.Path("made").open("a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + " ")

@pytest.mark.parametrize("number", range(6))
def test_with_it(shared, number):
    pass

@pytest.mark.xdist_group("named")
@pytest.mark.parametrize("number", range(6))
def test_named(number):
    with pathlib.Path("named").open("a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + " ")

@pytest.mark.parametrize("number", range(6))
def test_alone(number):
    pass
"""


def test_a_fixture_of_a_module_is_made_by_one_worker_and_groups_are_kept(tmp_path):
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(
        "from tests.kept_together import keep_together\n"
        "import pytest\n"
        "@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_collection_modifyitems(items):\n"
        "    keep_together(items)\n"
    )

    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-n", "2", "--dist", "loadgroup", "."],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(HERE), "PATH": ""},
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert len((tmp_path / "made").read_text().split()) == 1
    named = (tmp_path / "named").read_text().split()
    assert len(named) == 6
    assert len(set(named)) == 1
