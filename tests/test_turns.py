"""Tests that take long take turns: five numbers have them all, and every file has one each time."""

from __future__ import annotations

import pytest

from tests import turns
from tests.turns import PARTS, kept, long_functions, take


class Item:
    def __init__(self, nodeid: str, *markers: pytest.Mark) -> None:
        self.nodeid, self.own_markers = nodeid, list(markers)

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((one for one in self.own_markers if one.name == name), None)


LONG = ("tests/test_a.py::test_long", "tests/test_b.py::test_long")
ITEMS = [f"tests/test_a.py::test_long[{n}]" for n in range(40)] + ["tests/test_b.py::test_long@device"]
QUICK = ["tests/test_a.py::test_quick[1]", "tests/test_c.py::test_long"]


def taken(number: int) -> list[str]:
    items = [Item(name) for name in (*ITEMS, *QUICK)]
    take(items, number=number, long=LONG)
    return [item.nodeid for item in items if not item.get_closest_marker("slow")]


def test_five_runs_have_each_and_what_is_quick_every_time():
    runs = [set(taken(number)) for number in range(325, 325 + PARTS)]

    assert set.union(*runs) == {*ITEMS, *QUICK}
    assert all(run >= set(QUICK) for run in runs)
    assert all(3 <= len(run.intersection(ITEMS[:40])) <= 16 for run in runs)
    assert taken(3) == taken(3 + PARTS)


def test_every_file_has_one_each_time():
    for number in range(PARTS):
        assert "tests/test_b.py::test_long@device" in taken(number)


def test_what_is_slow_stays_slow_and_is_not_the_one_of_its_file():
    slow = pytest.mark.slow.mark
    items = [Item(ITEMS[0], slow), Item(ITEMS[1])]
    for number in range(PARTS):
        take(items, number=number, long=LONG)
    assert [bool(item.get_closest_marker("slow")) for item in items] == [True, False]


def test_functions_are_those_whose_tests_take_long_on_average(tmp_path, monkeypatch):
    monkeypatch.setattr(turns, "LONG", 1.5)
    file = tmp_path / "junit.xml"
    file.write_text(
        '<testsuites><testsuite><testcase classname="tests.case.test_x" name="test_one[a]" time="1.5" />'
        '<testcase classname="tests.case.test_x" name="test_one[b]" time="1.6" />'
        '<testcase classname="tests.case.test_x" name="test_two@group" time="2" />'
        '<testcase classname="tests.case.test_x" name="test_three[a]" time="1.6" />'
        '<testcase classname="tests.case.test_x" name="test_three[b]" time="1.3" /></testsuite></testsuites>'
    )
    assert set(long_functions(file)) == {
        "tests/case/test_x.py::test_one",
        "tests/case/test_x.py::test_two",
    }


def test_what_is_kept_is_there(pytestconfig):
    for function in kept():
        file, _, name = function.partition("::")
        assert f"def {name}(" in (pytestconfig.rootpath / file).read_text("utf-8"), function
