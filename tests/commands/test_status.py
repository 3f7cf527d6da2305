"""How long things took, in words."""

from __future__ import annotations

import pytest

from pipeconform.commands.status import _duration


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1:00 min"),
        (185.4, "3:05 min"),
        (3599.4, "59:59 min"),
        (3599.6, "1:00:00 h"),
        (90_061.0, "25:01:01 h"),
    ],
)
def test_a_duration_is_rounded_before_it_is_divided(seconds, words):
    assert _duration(seconds) == words
