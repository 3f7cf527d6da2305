"""The folder's public names are few, sorted, and load only what they need."""

import subprocess
import sys

import pytest

from pipeconform import ranks


def test_the_public_names_are_sorted_and_exist():
    assert sorted(ranks.__all__) == ranks.__all__
    assert all(hasattr(ranks, name) for name in ranks.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = ranks.nothing


def test_the_controllers_side_does_not_import_torch():
    code = (
        "import sys; from pipeconform import ranks; [getattr(ranks, n) for n in ranks.__all__]; "
        "assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
