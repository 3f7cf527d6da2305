"""The table of verdicts on the CPU and on a device is made of what is kept, and every difference has its reason."""

import sys
from types import SimpleNamespace

import pytest


@pytest.fixture
def module(pytestconfig, monkeypatch):
    monkeypatch.syspath_prepend(str(pytestconfig.rootpath / "docs/devices"))
    import table

    yield table
    sys.modules.pop("table", None)


KEPT = {
    "torch": {
        "ERR-1 1F1B": ["crashed", "hung"],
        "ERR-1 GPipe": ["crashed", "hung"],
        "FWD-1 GPipe": ["passed", "passed"],
        "TRN-1 GPipe": ["passed", "failed"],
    }
}
REASON = {
    "implementation": "torch",
    "requirements": "ERR-1, ERR-3",
    "cpu": "crashed",
    "device": "hung",
    "why": "It waits.",
}


def run_with(*requirements):
    cells = [
        SimpleNamespace(requirement=one, schedule="GPipe", variant="default", status="passed", reason="")
        for one in requirements
    ]
    return SimpleNamespace(implementation=SimpleNamespace(name="torch"), cells=cells)


def test_a_row_for_all_equal_cells_and_one_for_each_difference(module):
    assert module.table(KEPT, [REASON]).splitlines()[2:] == [
        "| torch | 1 | met | met | – |",
        "| torch | ERR-1: 1F1B, GPipe | crashed | hung | It waits. |",
        "| torch | TRN-1: GPipe | met | violated | not known |",
    ]


def test_what_has_no_reason_and_what_no_longer_differs_is_found(module):
    old = {**REASON, "requirements": "ERR-9"}
    assert module.unexplained(KEPT, [REASON]) == ["torch: TRN-1 passed failed"]
    assert module.unused(KEPT, [REASON, old]) == [str(old)]


def test_cells_of_one_run_only_are_an_error_unless_what_both_have_is_wanted(module, capsys):
    cpu, device = run_with("TRN-1", "TRN-2"), run_with("TRN-1")
    with pytest.raises(SystemExit, match="only one run has these cells: TRN-2 GPipe"):
        module.pairs(cpu, device)
    assert module.pairs(cpu, device, shared=True) == {"TRN-1 GPipe": ["passed", "passed"]}
    assert "only one run has 1 cells" in capsys.readouterr().out


def test_only_the_table_of_the_page_changes(module):
    page = f"before\n{module.BEGIN}\nold\n{module.END}\nafter"
    assert module.page_with(page, "new") == f"before\n{module.BEGIN}\nnew\n{module.END}\nafter"
    with pytest.raises(ValueError, match="the page has no"):
        module.page_with("before", "new")


@pytest.mark.parametrize("name", ["testdev", "cuda"])
def test_the_page_has_the_table_of_what_is_kept(module, name):
    device = module.DEVICES[name]
    made = module.table(device.kept, device.explained)
    assert module.page_with(device.page.read_text(), made) == device.page.read_text()
    assert device.kept


@pytest.mark.parametrize("name", ["testdev", "cuda"])
def test_every_difference_has_a_reason_and_no_reason_is_out_of_date(module, name):
    device = module.DEVICES[name]
    assert module.unexplained(device.kept, device.explained) == []
    assert module.unused(device.kept, device.explained) == []
