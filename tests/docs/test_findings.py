"""Every script in docs/findings still prints what is stored next to it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.installed import installed_release

FINDINGS = Path(__file__).resolve().parents[2] / "docs" / "findings"
SCRIPTS = sorted(FINDINGS.glob("*.py"))
RELEASE = re.compile(r"(?P<distribution>.+?)-(?P<version>\d+(\.\d+)+)-")
NUMBER = re.compile(r"(-?\d+\.\d+)")


def test_there_are_scripts():
    assert SCRIPTS


def _needs(script):
    """Skip a finding about a release that is not the installed one."""
    named = RELEASE.match(script.name)
    distribution, version = named["distribution"], named["version"]
    installed = installed_release(distribution) or "not installed"
    if not f"{installed}.".startswith(f"{version}."):
        pytest.skip(f"about {distribution} {version}, which is {installed} here")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_output_is_stored_and_the_script_is_listed(script):
    assert script.with_suffix(".txt").read_text()
    assert script.name in (FINDINGS / "README.md").read_text()
    assert "pipeconform" not in script.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script_prints_the_stored_output(script, tmp_path):
    _needs(script)
    command = [sys.executable, "-W", "ignore", str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    actual, expected = NUMBER.split(done.stdout), NUMBER.split(script.with_suffix(".txt").read_text())
    assert actual[::2] == expected[::2]  # text between decimal numbers
    assert [float(n) for n in actual[1::2]] == pytest.approx([float(n) for n in expected[1::2]], abs=1e-3)
