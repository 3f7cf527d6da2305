"""What was executed of an implementation, in words."""

import pytest

from pipeconform.report.coverage import Coverage, CoveredFile, NotEntered
from pipeconform.report.coverage_text import coverage_lines, share

FILES = (
    CoveredFile(name="engine/__init__.py", lines=0, branches=0, functions=0),
    CoveredFile(
        name="engine/stage.py",
        lines=200,
        branches=3,
        functions=2,
        missing_lines=(7,),
        missing_branches=((6, 7), (6, -5)),
        not_entered=(NotEntered(name="never", line=5, lines=1),),
    ),
)


def test_the_sums_come_first_and_files_without_functions_not_at_all():
    assert list(coverage_lines(Coverage(packages=("engine",), files=FILES))) == [
        "the cases executed 99 % of 200 lines and 33 % of 3 branches in functions of engine; no case entered 1 of "
        "2 functions",
        "  engine/stage.py   99 % of   200 lines   33 % of     3 branches    1 of   2 functions not entered",
    ]


@pytest.mark.parametrize(("part", "whole", "words"), [(0, 0, "–"), (999, 1000, "99 %"), (5, 5, "100 %")])
def test_only_the_whole_is_all(part, whole, words):
    assert share(part, whole) == words
