"""What a certification judges is drawn again from claims, which may be forged."""

from __future__ import annotations

import msgspec
import pytest

from pipeconform.certificate.listed import listed
from pipeconform.errors import BadResultError, NothingJudgedError, TooLargeError
from tests.certificate.conftest import LEVEL, SCHEDULES, implementation


@pytest.mark.parametrize(
    ("raised", "told", "words"),
    [
        (
            NothingJudgedError("no schedule"),
            BadResultError,
            "no cases can be drawn from these claims: no schedule",
        ),
        (
            ValueError("empty range"),
            BadResultError,
            "no cases can be drawn from these claims: ValueError: empty range",
        ),
        (TooLargeError("too many"), TooLargeError, "too many"),
    ],
    ids=["nothing", "a mistake", "too large"],
)
def test_claims_that_cannot_be_drawn_from_are_told_as_bad_ones(monkeypatch, raised, told, words):
    def fails(*_, **__):
        raise raised

    monkeypatch.setattr("pipeconform.certificate.listed.num_draws", fails)
    other = msgspec.structs.replace(implementation(), version=words)  # what was drawn before is remembered

    with pytest.raises(told) as caught:
        listed(LEVEL, other, max_ranks=2)
    assert str(caught.value) == words


def test_claims_that_cannot_be_read_are_told():
    unreadable = msgspec.structs.replace(implementation(), capabilities={"schedules": 3})

    with pytest.raises(BadResultError, match="the claims of the implementation cannot be read"):
        listed(LEVEL, unreadable, max_ranks=2)


def test_where_an_adapter_lies_has_no_say_in_what_it_is_judged_on():
    moved = msgspec.structs.replace(
        implementation(), reference="there.py:A", source="there.py", source_digest="0" * 64
    )
    one, other = (listed(LEVEL, it, max_ranks=LEVEL.max_ranks) for it in (implementation(), moved))

    assert one.cells == other.cells
    assert {cell.schedule for cell in one.cells} == set(SCHEDULES)
