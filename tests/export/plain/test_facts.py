"""The facts of a plain program."""

import re
from ast import literal_eval

import pytest

from pipeconform.export.plain.facts import pattern_of
from pipeconform.judge.outcome import normalised

MESSAGES = [
    "Mismatch in shape: grad_output[0] has a shape of torch.Size([2, 1]) and output[0] has one of torch.Size([1])",
    "expected a shape of (2, 3,4), not -1.5e-3",
    "object at 0x7f2a is not 'ready' (1)",
    'a stage\'s "own" parameter',
    "the name " + "of a long parameter " * 8,
]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_found_by_the_pattern_of_its_normalised_text(message):
    pattern = literal_eval("r" + pattern_of(f"RuntimeError: {normalised(message)}"))

    assert re.search(pattern, f"Traceback\nRuntimeError: {message}\n", re.MULTILINE)
    assert not re.search(pattern, "Traceback\nRuntimeError: another message\n", re.MULTILINE)
