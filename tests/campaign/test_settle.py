"""A comparison is settled by how often each case shows its violation again."""

import pytest
from msgspec import structs

from pipeconform.campaign import settle as module
from pipeconform.campaign.options import Options
from pipeconform.campaign.rejudge import Again
from pipeconform.campaign.settle import TIMES, settle
from pipeconform.gate.comparison import compare
from tests.report.conftest import make

__all__ = ["make"]

OPTIONS = Options(implementation="it:It")


@pytest.fixture
def settled(make, monkeypatch):
    """Settle the comparison of two results, old and new, in which cases show again as often as is said."""

    def settled(old, new, *, times):
        asked = []

        def rejudge(questions, *, options, times):
            assert (options, times) == (OPTIONS, TIMES)
            asked.extend(questions)
            return tuple(
                Again(
                    question=one,
                    shown=tuple(
                        frozenset({shown[one.requirement]} if number < again[one.requirement] else ())
                        for number in range(times)
                    ),
                )
                for one in questions
            )

        shown = {
            cell.requirement: (violation.status, violation.signature)
            for result in (old, new)
            for cell in result.cells
            for violation in cell.violations
        }
        again = times
        monkeypatch.setattr(module, "rejudge", rejudge)
        found = settle(compare(old, new), old, new, options=OPTIONS)
        return {change.requirement: (change.kind, change.detail) for change in found.changes}, asked

    return settled


def _violated(make, requirement, **fields):
    return make.cell(requirement, "GPipe", make.violation(requirement, "GPipe", **fields))


def test_what_does_not_show_every_time_is_flaky_and_what_is_said_to_be_fixed_shows_sometimes(make, settled):
    names = ("FWD-1", "FWD-2", "TRN-1", "TRN-2")
    good = {name: make.cell(name, "GPipe") for name in names}
    bad = {name: _violated(make, name) for name in names}
    old = make.result(good["FWD-1"], good["FWD-2"], bad["TRN-1"], bad["TRN-2"])
    new = make.result(bad["FWD-1"], bad["FWD-2"], good["TRN-1"], good["TRN-2"])
    found, asked = settled(old, new, times={"FWD-1": 3, "FWD-2": 2, "TRN-1": 0, "TRN-2": 1})

    words = "executed again, its case showed the violation {} of 3 times"
    assert {name: kind for name, (kind, _) in found.items()} == {
        "FWD-1": "regressed",
        "FWD-2": "flaky",
        "TRN-1": "fixed",
        "TRN-2": "sometimes",
    }
    assert [found[name][1] for name in ("FWD-2", "TRN-2")] == [words.format(2), words.format(1)]
    assert sorted(one.requirement for one in asked) == sorted(names)
    assert not any(one.hung for one in asked)


def test_a_hang_is_asked_for_as_one_and_what_never_shows_is_flaky(make, settled):
    hung = structs.replace(make.violation("FWD-1", "GPipe"), status="hung")
    cell = make.cell("FWD-1", "GPipe", hung)
    found, asked = settled(make.result(make.cell("FWD-1", "GPipe")), make.result(cell), times={"FWD-1": 0})

    assert found["FWD-1"][0] == "flaky"
    assert [(one.hung, one.case, one.variant) for one in asked] == [(True, hung.case, "default")]


def test_what_did_not_change_is_not_executed(make, settled):
    bad = make.result(_violated(make, "FWD-1"))
    found, asked = settled(bad, bad, times={"FWD-1": 0})

    assert asked == []
    assert "flaky" not in {kind for kind, _ in found.values()}
