"""``run --coverage``: which lines, branches and functions of the implementation the cases executed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from pipeconform.report.result import read_result
from tests import tenths

ENGINE = Path(__file__).with_name("measured_engine.py")
SMALL = (
    *("--requirements", "FWD-1", "--schedules", "GPipe"),
    *("--ranks", "2", "--examples", "1", "--profile", "smoke"),
)


@pytest.fixture
def measured(typed, tmp_path):
    """What a run of one of the engine's adapters executed of its file, and what it printed."""

    def run(adapter, *more):
        code, out, err = typed(
            "run", "--impl", f"{ENGINE}:{adapter}", *SMALL, "--coverage", *more, "--out", tmp_path
        )
        found = read_result(tmp_path / "result.json").coverage
        assert found is not None, out + err
        (file,) = found.files
        return file, code, out

    return run


def line(text):
    """The number of the line with this text."""
    (number,) = (at for at, one in enumerate(ENGINE.read_text().splitlines(), 1) if one.strip() == text)
    return number


def test_what_no_case_executed_is_listed(measured):
    file, code, out = measured("Adapter")
    missed = {one.name: one.line for one in file.not_entered}

    assert code == 0
    assert file.name.endswith(".py")
    assert missed.keys() == {"before_raising", "before_hanging", "never", "Raising.run", "Hanging.run"}
    assert missed["never"] == line("def never() -> str:")
    assert line('return "some"') not in file.missing_lines
    assert line('return "fewer than none"') in file.missing_lines
    assert file.missing_branches == ((line("if number < 0:"), line('return "fewer than none"')),)
    assert (file.functions, file.branches, file.executed_branches) == (7, 2, 1)
    assert "50 % of     2 branches    5 of   7 functions not entered" in out


@pytest.mark.parametrize(
    ("adapter", "reached", "expected"),
    [
        ("Raises", {"before_raising", "Raising.run"}, 3),  # the adapter's own error
        pytest.param("Hangs", {"before_hanging", "Hanging.run"}, 1, marks=tenths.mark),
    ],
)
def test_what_ran_before_an_error_or_a_hang_counts(measured, adapter, reached, expected):
    file, code, _ = measured(adapter)
    missed = {one.name for one in file.not_entered}

    assert code == expected
    assert reached.isdisjoint(missed)
    assert "usual" in missed


@pytest.mark.slow
def test_workers_share_what_they_measure(measured):
    file, code, _ = measured("Adapter", "-n", "2", "--schedules", "GPipe,1F1B")

    assert code == 0
    assert "usual" not in {one.name for one in file.not_entered}


def test_without_the_option_nothing_is_measured(typed, tmp_path):
    code, _, _ = typed("run", "--impl", f"{ENGINE}:Adapter", *SMALL, "--out", tmp_path)

    assert code == 0
    assert read_result(tmp_path / "result.json").coverage is None


def test_it_says_how_to_get_what_measures(typed, tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "pipeconform.session.coverage.find_spec", lambda name: None if name == "coverage" else found(name)
    )
    code, _, said = typed("run", "--impl", "reference", *SMALL, "--coverage", "--out", tmp_path)

    assert code == 2
    assert "--coverage needs coverage.py: python -m pip install 'pipeconform[coverage]'" in said
