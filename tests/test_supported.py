"""The range of torch that is supported."""

import tomllib
from pathlib import Path

import pytest

from pipeconform import supported
from pipeconform.errors import UsageError


def test_the_range_is_the_one_the_package_declares():
    project = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text("utf-8"))[
        "project"
    ]

    assert f"torch{supported.describe_range()}" in project["dependencies"]


@pytest.mark.parametrize("version", ["2.13.0", "2.13.1+cpu", "2.13.0a0+git1234"])
def test_a_version_inside_the_range_is_supported(version):
    assert supported.why_unsupported(version) is None


@pytest.mark.parametrize("version", ["2.12.9", "2.14.0", "1.13.0", "3.0.0", "nightly"])
def test_a_version_outside_the_range_is_named_with_the_remedy(version):
    assert supported.why_unsupported(version) == (
        f"torch {version} is not supported: this version needs torch>=2.13,<2.14; pip install 'torch>=2.13,<2.14'"
    )


def test_a_missing_torch_is_refused(monkeypatch):
    monkeypatch.setattr(supported, "torch_version", lambda: None)

    with pytest.raises(UsageError, match=r"torch is not installed; pip install"):
        supported.require_supported_torch()


def test_the_installed_torch_is_supported():
    supported.require_supported_torch()
