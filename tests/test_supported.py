"""The range of torch that is supported."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pipeconform import supported
from pipeconform.errors import UsageError
from tests.facts import tells


def test_the_range_is_the_one_the_package_declares():
    project = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text("utf-8"))[
        "project"
    ]

    assert f"torch{supported.describe_range()}" in project["dependencies"]


@pytest.mark.parametrize("version", ["2.9.0", "2.11.0+cu130", "2.13.1+cpu", "2.15.0+cu132"])
def test_a_release_inside_the_range_is_tested(version):
    assert supported.why_unsupported(version) is None
    assert supported.why_untested(version) is None


@pytest.mark.parametrize(
    "version", ["2.16.0", "3.0.0", "2.16.0.dev20261101+cpu", "2.13.0a0+git1234", "2.15.0rc2"]
)
def test_a_later_release_and_a_pre_release_run_with_a_warning(version):
    assert supported.why_unsupported(version) is None
    assert tells(supported.why_untested(version), f"torch {version}", "not tested", "torch>=2.9,<2.16")


@pytest.mark.parametrize("version", ["2.8.0", "2.8.9+cpu", "1.13.0"])
def test_an_older_release_is_refused_with_the_reason_and_two_remedies(version):
    reason = supported.why_unsupported(version)
    assert tells(
        reason, f"torch {version}", "older", "pip install 'torch>=2.9,<2.16'", "--allow-untested-torch"
    )


def test_an_older_release_that_is_allowed_runs_with_a_warning(monkeypatch):
    monkeypatch.setenv(supported.ALLOW_UNTESTED, "1")

    assert supported.why_unsupported("2.8.0") is None
    assert supported.why_untested("2.8.0") is not None


def test_a_version_without_a_number_is_refused():
    assert "is no release that can be compared" in supported.why_unsupported("nightly")


def test_a_missing_torch_is_refused(monkeypatch):
    monkeypatch.setattr(supported, "torch_version", lambda: None)

    with pytest.raises(UsageError, match=r"torch is not installed; pip install"):
        supported.require_supported_torch()


def test_a_torch_that_cannot_be_imported_is_the_machines_fault(tmp_path):
    """As if the backend of a device were installed that cannot be loaded: torch loads all that there are."""
    about = tmp_path / "broken-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[torch.backends]\nbroken = broken:autoload\n")
    (tmp_path / "broken.py").write_text("def autoload():\n    raise OSError('libbroken.so: no such file')\n")
    command = [sys.executable, "-m", "pipeconform", "list", "--impl", "torch"]
    found = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=found, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 3
    assert re.fullmatch(
        r"pipeconform: torch cannot be imported: Failed to load the backend extension: broken\..*: "
        r"libbroken\.so: no such file\n",
        done.stderr,
    )


def test_the_installed_torch_is_supported():
    supported.require_supported_torch()


@pytest.mark.parametrize(
    ("version", "range_", "inside"),
    [
        ("2.14.1+cu130", ">=2.14", True),
        ("2.14.1", "==2.14", True),
        ("2.14.1", ">2.14", False),
        ("2.9.1", ">=2.10", False),
        ("2.16.0a0+git1", ">=2.15,<2.17", True),
        ("2.13.0", "<2.12, >=2.9", False),
        ("2.13.0", "!=2.13.0", False),
    ],
)
def test_releases_are_compared_by_number_as_far_as_the_bound_goes(version, range_, inside):
    assert supported.is_release_range(range_)
    assert supported.is_within(version, range_) is inside
