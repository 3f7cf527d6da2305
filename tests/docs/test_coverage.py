"""The page about coverage has what a run executed, and a reason for each branch that cannot be executed."""

import ast
import json
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from torch.distributed import pipelining

from pipeconform.report.result import write_result
from tests.report.conftest import Make


@pytest.fixture
def module(pytestconfig, monkeypatch):
    monkeypatch.syspath_prepend(str(pytestconfig.rootpath / "docs/coverage"))
    import table

    yield table
    sys.modules.pop("table", None)


@pytest.fixture
def kept(module):
    return json.loads((module.HERE / f"torch-{module.VERSION}.json").read_text("utf-8"))


def test_the_page_has_what_is_kept(module, kept):
    text = module.PAGE.read_text("utf-8")

    assert module.page_with(text, module.table(kept, *module.reasons())) == text


def test_a_branch_that_was_executed_has_no_reason_why_it_cannot_be(module, kept):
    _, reasons = module.reasons()
    assert module.executed_after_all(kept, reasons) == []

    kept["stage.py"]["missing"] = []
    assert len(module.executed_after_all(kept, reasons)) == len(reasons["stage.py"])


def test_every_reason_is_of_a_kind_that_is_explained_and_every_kind_is_used(module):
    kinds, reasons = module.reasons()

    assert {kind for own in reasons.values() for kind in own.values()} == set(kinds)
    assert reasons.keys() <= set(module.FILES)


def test_branches_lie_within_one_function(module):
    if not version("torch").startswith(module.VERSION):
        pytest.skip(f"needs torch {module.VERSION}")
    for file, own in module.reasons()[1].items():
        tree = ast.parse(Path(pipelining.__file__).with_name(file).read_text("utf-8"))
        functions = [
            range(node.lineno, (node.end_lineno or 0) + 1)
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef)
        ]
        for branch in own:
            first, _, last = branch.partition("-")
            assert any(int(first) in lines and abs(int(last)) in lines for lines in functions), branch


def test_a_result_without_coverage_is_refused(module, tmp_path):
    make = Make()
    write_result(make.result(make.cell("FWD-1", "GPipe")), tmp_path / "result.json")

    with pytest.raises(SystemExit, match=r"has no coverage: judge with --coverage"):
        module.main([str(tmp_path / "result.json")])
