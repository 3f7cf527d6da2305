"""How ranks ended says what became of the case."""

import pytest

from pipeconform.export.launcher import ended, verdict
from pipeconform.export.process import DIFFERENT, STUCK, UNFIT


@pytest.mark.parametrize(
    ("codes", "told"),
    [
        ([0, 0], ""),
        ([DIFFERENT, 0], "failed, values are wrong"),
        ([1, None], "error, a rank raised"),
        ([STUCK, 1], "hung, no rank went on"),
        ([1, -9], "crashed, a rank died"),
        ([0, 13], "crashed, a rank died"),
        ([STUCK, STUCK], "hung, no rank went on"),
        ([STUCK, None], "hung, no rank went on"),
        ([STUCK, UNFIT], "hung, no rank went on"),
        ([None, UNFIT], ""),
    ],
)
def test_the_worst_end_counts(codes, told):
    assert verdict(codes) == told


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (0, "returned"),
        (1, "raised an error"),
        (UNFIT, "could not run the case"),
        (-6, "died by signal 6"),
        (13, "left with exit code 13"),
        (None, "still waited when another had ended, and was killed"),
    ],
)
def test_every_end_has_words(code, told):
    assert ended(code) == told
