import importlib
import subprocess
import sys
from importlib import metadata

import pytest

import pipeconform


def test_the_public_names_are_these_and_sorted() -> None:
    assert pipeconform.__all__ == sorted(pipeconform.__all__) == dir(pipeconform)
    assert all(getattr(pipeconform, name) is not None for name in pipeconform.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        pipeconform.nonsense  # noqa: B018


def test_the_version_is_the_distributions() -> None:
    assert pipeconform.__version__ == metadata.version("pipeconform")


def test_importing_the_package_loads_neither_torch_nor_hypothesis() -> None:
    code = "import pipeconform, sys; sys.exit(bool({'torch', 'hypothesis', 'pytest', 'msgspec'} & set(sys.modules)))"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_suites_and_reference_travel_under_the_packages_name() -> None:
    for name in ("pipeconform.suites.forward", "pipeconform.reference_impl.adapter"):
        assert importlib.import_module(name).__name__ == name
