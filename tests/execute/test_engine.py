"""The files behind an adapter are found by what it imports, and their digest changes with them."""

import sys
from importlib import metadata
from pathlib import Path

import msgspec
import pytest

from pipeconform.execute.engine import Component, answer, components_of, digest_of_tree


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """An adapter, and a package beside it that no distribution installed."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("pipeconform.execute.engine._ALWAYS", "msgspec")  # torch has 12,000 files
    (tmp_path / "pk_engine").mkdir()
    (tmp_path / "pk_engine/__init__.py").write_text("from .inner import step\n")
    (tmp_path / "pk_engine/inner.py").write_text("import pk_helper\n\ndef step(): ...\n")
    (tmp_path / "pk_helper.py").write_text("VALUE = 1\n")
    (tmp_path / "pk_adapter.py").write_text(
        "from pipeconform.adapter import Description\n"
        "class Adapter:\n"
        "    def describe(self):\n"
        "        import pk_engine, json\n"
    )
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("pk_")]:
        del sys.modules[name]


def names(components):
    return [one.name for one in components]


def test_what_is_imported_anywhere_is_followed_but_for_python_and_what_judges(engine):
    found = components_of(engine / "pk_adapter.py")

    assert names(found) == ["msgspec", "pk_engine", "pk_helper"]
    assert [one.files for one in found[1:]] == [2, 1]


def test_any_change_of_a_file_changes_the_digest_and_what_is_compiled_does_not(engine):
    before = digest_of_tree("pk_engine", engine / "pk_engine")
    (engine / "pk_engine/__pycache__").mkdir()
    (engine / "pk_engine/__pycache__/inner.cpython-311.pyc").write_bytes(b"x")
    assert digest_of_tree("pk_engine", engine / "pk_engine") == before

    (engine / "pk_engine/inner.py").write_text("import pk_helper\n\ndef step(): return 1\n")
    changed = digest_of_tree("pk_engine", engine / "pk_engine")
    (engine / "pk_engine/more.txt").write_text("")
    more = digest_of_tree("pk_engine", engine / "pk_engine")
    assert len({before.digest, changed.digest, more.digest}) == 3


def test_an_installed_package_is_named_with_its_distribution(engine):
    (engine / "pk_adapter.py").write_text("import click.core\nimport nowhere_to_be_found\n")
    found = {one.name: one for one in components_of(engine / "pk_adapter.py")}

    assert found.keys() == {"click", "msgspec"}
    assert (found["click"].kind, found["click"].version) == ("distribution", metadata.version("click"))
    assert found["click"].files > 10


@pytest.mark.slow
def test_the_reference_is_a_tree_of_its_own_and_the_judge_is_none():
    found = msgspec.msgpack.decode(answer(None, b"reference"), type=tuple[Component, ...])

    assert names(found) == ["pipeconform.reference_impl", "torch"]


def test_relative_imports_and_files_that_cannot_be_read_are_no_obstacle(engine):
    (engine / "pk_engine/__init__.py").write_text("from . import inner\nfrom .. import nothing\n")
    (engine / "pk_engine/inner.py").write_text("this is no Python\n")

    assert names(components_of(engine / "pk_adapter.py")) == ["msgspec", "pk_engine"]
    assert names(components_of(None)) == ["msgspec"]
    assert names(components_of(Path("/nowhere.py"))) == ["msgspec"]
