"""What is measured of an implementation: the files of its packages, wherever Python has them."""

from pathlib import Path

from pipeconform.reference_impl.adapter import ReferenceAdapter

from pipeconform.execute.coverage import measured, packages_of, sources_of


def test_a_package_has_its_files_and_those_of_its_subpackages():
    found = sources_of(("pipeconform.schedule",)).files

    assert "pipeconform/schedule/__init__.py" in found
    assert "pipeconform/schedule/families/__init__.py" in found
    assert all(Path(path).is_file() for path in found.values())


def test_a_module_has_one_file():
    assert list(sources_of(("pipeconform.schedule.table",)).files) == ["pipeconform/schedule/table.py"]


def test_what_python_does_not_find_has_none():
    assert sources_of(("no_such_package.at_all", "sys")).files == {}


def test_without_packages_an_adapter_stands_for_itself():
    adapter = ReferenceAdapter()

    assert packages_of(adapter, adapter.describe()) == ("pipeconform.reference_impl.adapter",)


def test_without_a_folder_nothing_is_measured(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with measured(("pipeconform.schedule",), folder=""):
        pass

    assert not list(tmp_path.iterdir())
