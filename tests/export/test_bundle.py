"""A script carries the modules that are imported, relatively too, and no more."""

import pytest

from pipeconform.errors import UsageError
from pipeconform.export.bundle import imported_by, sources_of


def test_what_is_imported_is_carried_with_its_packages():
    found = sources_of(["pipeconform.reference_impl.faults.scale"])

    assert "pipeconform.reference_impl." in found
    assert "pipeconform.reference_impl.stage" in found
    assert "pipeconform.schedule.table" in found
    assert not any("campaign" in name or "judge" in name for name in found)


def test_the_names_of_schedules_are_enough_for_claims():
    found = sources_of(["pipeconform.claims"])
    names = {}
    exec(found["pipeconform.schedule."], names)

    assert set(found) == {"pipeconform.claims", "pipeconform.errors", "pipeconform.schedule."}
    assert "one_f_one_b" in [family.name for family in names["families"]()]


def test_a_module_without_source_is_named():
    with pytest.raises(UsageError, match="_socket has no source in Python"):
        sources_of(["_socket"])


def test_what_an_adapter_s_own_file_imports_of_ours_is_found():
    text = "import os\nfrom pipeconform.adapters.torch_pipelining import TorchPipelining\nimport torch\n"

    assert imported_by(text, "mine") == ["pipeconform.adapters.torch_pipelining"]
    assert imported_by("import pipeconform\n", "mine") == []
