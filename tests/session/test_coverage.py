"""Counting what ranks recorded."""

import coverage
import msgspec

from pipeconform.execute.coverage import SOURCES, Sources
from pipeconform.session.coverage import coverage_in

TEXT = """\
def outer(x):
    def inner():
        return x

    if x:
        return inner()
    return None


def other():
    return 1


def only_documented():
    '''Does nothing.'''
"""


def test_nothing_is_said_where_no_rank_ran(tmp_path):
    assert coverage_in(tmp_path) is None


def test_what_ranks_executed_is_united_function_by_function(tmp_path):
    source = tmp_path / "engine.py"
    source.write_text(TEXT)
    sources = Sources(packages=("engine",), files={"engine.py": str(source)})
    (tmp_path / SOURCES).write_bytes(msgspec.json.encode(sources))
    for number, arcs in enumerate([[(-1, 2), (2, 5), (5, 7), (7, -1)], [(-1, 2), (2, 5), (5, 6), (6, -1)]]):
        data = coverage.CoverageData(basename=str(tmp_path / f"rank-{number}"))
        data.add_arcs({str(source): arcs})
    (found,) = coverage_in(tmp_path).files

    assert (found.lines, found.branches, found.functions) == (6, 2, 3)
    assert found.missing_branches == ()
    assert found.missing_lines == (3, 11)
    assert {one.name: (one.line, one.lines) for one in found.not_entered} == {
        "outer.inner": (2, 1),
        "other": (10, 1),
    }
