"""A judgement's line is the one that Python's own reading of the source finds."""

import inspect

import pytest

from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.spec.lines import first_line


@pytest.mark.parametrize("name", ["FWD-1", "COM-1", "ERR-1", "LIF-5", "TRC-1"])
def test_it_is_where_the_function_begins(name):
    judgement = JUDGEMENTS[name]
    function = judgement.aftermath or judgement.refused or judgement.judge

    assert first_line(function) == inspect.getsourcelines(function)[1] == judgement.line
