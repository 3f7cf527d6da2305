"""An archive carries the modules that are imported, relatively too, and no more."""

import subprocess
import sys

import pytest

from pipeconform.errors import UsageError
from pipeconform.export.bundle import imported_by, sources_of


def test_what_is_imported_is_carried_with_its_packages():
    found = sources_of(["pipeconform.reference_impl.faults.scale"])

    assert "pipeconform/reference_impl/__init__.py" in found
    assert "pipeconform/reference_impl/stage.py" in found
    assert "pipeconform/schedule/table.py" in found
    assert not any("campaign" in name or "judge" in name for name in found)


def test_what_a_package_reads_beside_its_modules_is_carried():
    assert "pipeconform/spec/levels.toml" in sources_of(["pipeconform.spec"])


def test_with_the_catalogue_the_suites_are_carried_that_it_loads_by_name():
    found = sources_of(["pipeconform.judge.registry"])

    for name in (
        "suites/__init__",
        "suites/training/__init__",
        "suites/training/gradients",
        "judge/training",
    ):
        assert f"pipeconform/{name}.py" in found


def test_the_package_s_own_names_are_not_followed():
    assert set(sources_of(["pipeconform.suggestions"])) == {
        "pipeconform/__init__.py",
        "pipeconform/suggestions.py",
    }


def test_a_module_without_source_is_named():
    with pytest.raises(UsageError, match="_socket has no Python source"):
        sources_of(["_socket"])


def test_what_an_adapter_s_own_file_imports_of_ours_is_found():
    text = "import os\nfrom pipeconform.adapters.torch_pipelining import TorchPipelining\nimport torch\n"

    assert imported_by(text, "mine") == ["pipeconform.adapters.torch_pipelining"]
    assert imported_by("import os\n", "mine") == []


def test_judging_one_case_imports_nothing_that_a_reader_of_a_program_need_not_have():
    modules = (
        "pipeconform.export.program",
        "pipeconform.export.question",
        "pipeconform.campaign.here",
        "pipeconform.campaign.again",
        "pipeconform.campaign.describing",
    )
    code = f"import sys, {', '.join(modules)}; print(*sorted({{n.partition('.')[0] for n in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert {"hypothesis", "click", "rich", "jinja2", "pytest", "cloudpickle"}.isdisjoint(done.stdout.split())
